/* ---- the view Raw ---- */

function showRaw() {
    if ($("raw").hidden || last.path === "") return;
    $("raw-none").hidden = true;
    $("raw-all").hidden = false;
    const sent = headers({ "Content-Type": "application/json" });
    if (sent.Authorization) sent.Authorization = "Bearer (hidden)";
    const head = Object.entries(sent).map(([k, v]) => k + ": " + v).join("\n");
    setText($("raw-request"), "POST " + last.path + "\n" + head + "\n\n" + last.body);
    setText($("raw-response"), last.status + "\n" + last.headers + "\n\n" + last.text);
}

/* The key is not in the text: it would end up in the history of a shell. */
function curl() {
    const quote = s => "'" + s.replace(/'/g, "'\\''") + "'";
    const auth = $("key").value ? " \\\n  -H \"Authorization: Bearer $ROSEINFER_API_KEY\"" : "";
    return "curl -N " + quote(location.origin + last.path) + " \\\n  -H 'Content-Type: application/json'" + auth +
        " \\\n  --data-binary " + quote(last.body);
}

/* ---- the view Server ---- */

const SPAN_S = 60;
const TILES = [ /* id, title, title of the second line */
    ["ttft", "Time to first token", "median; p99"], ["itl", "Time between tokens", "median; p99"],
    ["gen", "Generated tokens/s"], ["prompt", "Prompt tokens/s"],
    ["running", "Running requests"], ["waiting", "Waiting requests"],
    ["kv", "KV cache in use"], ["hits", "Prefix cache hits"],
];
let samples = []; /* of the last minute, and one before it */
let polling = 0;

/* Prometheus text -> Map from name to [{labels, value}]. */
function parseMetrics(text) {
    const out = new Map();
    for (const line of text.split("\n")) {
        const m = /^([A-Za-z_:][\w:]*)(?:\{(.*)\})? (\S+)/.exec(line);
        if (!m) continue;
        const labels = {};
        for (const l of (m[2] || "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) labels[l[1]] = l[2];
        if (!out.has(m[1])) out.set(m[1], []);
        out.get(m[1]).push({ labels, value: Number(m[3]) });
    }
    return out;
}

const total = (m, name) => (m.get(name) || []).reduce((sum, s) => sum + s.value, 0);

/* The cumulative buckets of a histogram, [[upper bound, count]], the bounds rising. */
function buckets(m, name) {
    const sums = new Map();
    for (const s of m.get(name + "_bucket") || []) {
        const le = s.labels.le === "+Inf" ? Infinity : Number(s.labels.le);
        sums.set(le, (sums.get(le) || 0) + s.value);
    }
    return [...sums].sort((a, b) => a[0] - b[0]);
}

/* The quantile q of what was counted after `old`, in seconds, as histogram_quantile of Prometheus; null: nothing was. */
function quantile(q, now, old) {
    const n = now.map(([le, c], i) => [le, c - (old[i] ? old[i][1] : 0)]);
    const all = n.length > 0 ? n[n.length - 1][1] : 0;
    if (all <= 0) return null;
    const i = n.findIndex(b => b[1] >= q * all);
    const low = i > 0 ? n[i - 1] : [0, 0];
    if (n[i][0] === Infinity) return low[0];
    return low[0] + (n[i][0] - low[0]) * (q * all - low[1]) / (n[i][1] - low[1]);
}

function sampleOf(text) {
    const m = parseMetrics(text);
    return {
        t: performance.now() / 1000, m,
        ttft: buckets(m, "vllm:time_to_first_token_seconds"), itl: buckets(m, "vllm:inter_token_latency_seconds"),
        gen: total(m, "roseinfer:engine_generated_tokens_total"), prompt: total(m, "roseinfer:engine_prompt_tokens_total"),
        running: total(m, "vllm:num_requests_running"), waiting: total(m, "vllm:num_requests_waiting"),
        kv: 100 * total(m, "vllm:kv_cache_usage_perc"), start: total(m, "process_start_time_seconds"),
        asked: total(m, "vllm:prefix_cache_queries_total"), found: total(m, "vllm:prefix_cache_hits_total"),
    };
}

/* Adds to the newest sample what follows from the earlier ones: its points in the charts. */
function derive(s) {
    const old = samples[0], before = samples[Math.max(0, samples.length - 4)]; /* about 3 s ago */
    const dt = before ? s.t - before.t : 0;
    const at = (h, q) => { const v = old ? quantile(q, s[h], old[h]) : null; return v === null ? null : 1000 * v; };
    s.shown = {
        ttft: [at("ttft", 0.5), at("ttft", 0.99)], itl: [at("itl", 0.5), at("itl", 0.99)],
        gen: [dt > 0 ? (s.gen - before.gen) / dt : null], prompt: [dt > 0 ? (s.prompt - before.prompt) / dt : null],
        running: [s.running], waiting: [s.waiting], kv: [s.kv],
        hits: [old && s.asked > old.asked ? 100 * (s.found - old.found) / (s.asked - old.asked) : null],
    };
}

/* The start time of one process differs a little from scrape to scrape, when the machine is busy. */
function add(s) {
    const newest = samples[samples.length - 1];
    if (newest && (Math.abs(newest.start - s.start) > 2 || newest.gen > s.gen)) samples = []; /* another process */
    derive(s);
    samples.push(s);
    while (samples.length > 2 && samples[1].t < s.t - SPAN_S) samples.shift();
}

function lineOf(id, k, now, top) {
    let d = "", pen = "M";
    for (const s of samples) {
        const v = s.shown[id][k], x = 120 - (now - s.t) * 120 / SPAN_S;
        if (v !== null && x >= 0) d += pen + x.toFixed(2) + " " + (31 - 30 * v / top).toFixed(2);
        pen = v !== null && x >= 0 ? "L" : "M";
    }
    return d;
}

function makeTiles() {
    const make = (tag, attributes) => {
        const e = document.createElementNS("http://www.w3.org/2000/svg", tag);
        for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v);
        return e;
    };
    for (const [id, title, second] of TILES) {
        const svg = make("svg", { viewBox: "0 0 120 32", preserveAspectRatio: "none", "aria-hidden": "true" });
        svg.append(make("line", { class: "axis", x1: 0, x2: 120, y1: 31.5, y2: 31.5 }));
        if (second) svg.append(make("path", { class: "second", id: "line-" + id + 1 }));
        svg.append(make("path", { id: "line-" + id + 0 }));
        $("tiles").append(el("div", { class: "tile" }, el("h3", { text: title }),
            el("div", { class: "value", id: "value-" + id, text: "\u2013" }), el("div", { class: "more", id: "more-" + id }), svg));
    }
}

function showTiles() {
    const s = samples[samples.length - 1], form = { ttft: ms, itl: ms, kv: v => v.toFixed(1) + " %", hits: v => v.toFixed(0) + " %",
        gen: v => v.toFixed(v < 100 ? 1 : 0), prompt: v => v.toFixed(v < 100 ? 1 : 0) };
    for (const [id, , second] of TILES) {
        const f = form[id] || String, value = k => s.shown[id][k] === null ? "\u2013" : f(s.shown[id][k]);
        const all = samples.flatMap(x => x.shown[id]).filter(v => v !== null);
        const top = id === "kv" || id === "hits" ? 100 : Math.max(1e-9, ...all);
        setText($("value-" + id), value(0));
        if (second) setText($("more-" + id), second + " " + value(1));
        else setText($("more-" + id), all.length > 0 ? "peak " + f(Math.max(...all)) : "");
        for (let k = second ? 1 : 0; k >= 0; k--) $("line-" + id + k).setAttribute("d", lineOf(id, k, s.t, top));
    }
    setText($("window"), "the last " + Math.max(1, Math.round(Math.min(SPAN_S, s.t - samples[0].t))) + " s");
}

const duration = s => s < 60 ? Math.floor(s) + " s" : s < 3600 ? Math.floor(s / 60) + " min"
    : s < 86400 ? (s / 3600).toFixed(1) + " h" : (s / 86400).toFixed(1) + " days";

function showFacts() {
    const s = samples[samples.length - 1], m = s ? s.m : new Map(), rows = [
        ["Model", facts.served_model_name], ["Path", facts.model_path], ["Version", facts.version], ["Type", facts.dtype],
        ["Context", facts.context_length && plural(facts.context_length, "token")],
        ["KV cache", facts.max_total_num_tokens && plural(facts.max_total_num_tokens, "token")],
        ["Running at most", facts.max_num_seqs && plural(facts.max_num_seqs, "request")],
    ];
    if (s) {
        const ended = {};
        for (const x of m.get("vllm:request_success_total") || [])
            ended[x.labels.finished_reason] = (ended[x.labels.finished_reason] || 0) + x.value;
        rows.push(["Up for", duration(Date.now() / 1000 - s.start)],
            ["Memory", (total(m, "process_resident_memory_bytes") / 1048576).toFixed(0) + " MiB"],
            ["Ended", Object.entries(ended).filter(([, v]) => v > 0).map(([k, v]) => v + " " + k).join(", ")],
            ["Refused", String(total(m, "vllm:admission_rejections_total"))],
            ["Preempted", String(total(m, "vllm:num_preemptions_total"))]);
    }
    const body = el("tbody");
    for (const [k, v] of rows) if (v) body.append(el("tr", null, el("th", { scope: "row", text: k }), el("td", { text: v })));
    $("facts").replaceChildren(body);
}

const isWatched = () => !$("server").hidden && document.visibilityState === "visible";

/* Reads /metrics each second while the view is seen. */
async function poll(round) {
    while (isWatched() && round === polling) {
        try {
            add(sampleOf(await get("metrics")));
            showTiles();
            showFacts();
            notice("metrics", "");
        } catch (e) {
            notice("metrics", "/metrics cannot be read: " + e.message);
        }
        await new Promise(done => setTimeout(done, 1000));
    }
}

const watch = () => { if (isWatched()) poll(++polling); };

/* ---- the page as a whole ---- */

const VIEWS = ["chat", "server", "raw"];

function show(view, focus) {
    for (const v of VIEWS) {
        const on = v === view;
        $(v).hidden = !on;
        $("tab-" + v).setAttribute("aria-selected", String(on));
        $("tab-" + v).tabIndex = on ? 0 : -1;
        if (on && focus) $("tab-" + v).focus();
    }
    for (const id of ["show-settings", "show-list"]) $(id).style.visibility = view === "chat" ? "" : "hidden";
    history.replaceState(null, "", "#view-" + view); /* the id of an element would take the focus */
    showRaw();
    watch();
}

const state = (dot, text) => { $("dot").className = dot; setText($("model-name"), text); };

let connecting = 0;

/* Asks what is served, until it is there. A later call takes over from an earlier one. */
async function connect(round = ++connecting) {
    const again = () => setTimeout(() => round === connecting && connect(round), 2000);
    try {
        const ready = await fetch(BASE + "ready", { cache: "no-store" });
        if (!ready.ok) {
            state("", "the server is " + JSON.parse(await ready.text()).status);
            again();
            return;
        }
        const list = JSON.parse(await get("v1/models")).data;
        template = JSON.parse(await get("tokenizer_info")).chat_template || "";
        facts = { ...JSON.parse(await get("server_info")), ...JSON.parse(await get("version")) };
        model = list[0].id;
        state("ready", model);
        $("version").textContent = facts.version;
        document.title = model + " \u00b7 roseinfer";
        $("empty-title").textContent = model;
        showMode();
        showDefaults();
        showFacts();
    } catch (e) {
        const away = e instanceof TypeError;
        state("down", away ? "the server cannot be reached" : e.message);
        if (away) again();
    }
}

function listen() {
    $("composer").addEventListener("submit", ev => { ev.preventDefault(); submit(); });
    $("input").addEventListener("input", () => { grow(); keepDraft(); });
    onEnter($("input"), submit);
    $("stop").addEventListener("click", stop);
    $("other-mode").addEventListener("click", () => {
        $("mode").value = isText() ? "chat" : "text";
        showMode();
        keepSettings();
        $("input").focus();
    });
    $("clear").addEventListener("click", clearTalk);
    for (const id of ["new", "new-in-list"]) $(id).addEventListener("click", () => openFromList(newTalk()));
    $("show-list").addEventListener("click", () => { showList($("list").hidden); if (!$("list").hidden) $("new-in-list").focus(); });
    $("hide-list").addEventListener("click", () => { showList(false); $("show-list").focus(); });
    $("search").addEventListener("input", listTalks);
    $("export").addEventListener("click", () => save([...talks.values()]));
    $("import").addEventListener("click", () => $("file").click());
    $("file").addEventListener("change", async () => {
        for (const f of $("file").files) await load(f);
        $("file").value = "";
    });
    $("show-settings").addEventListener("click", () => { showSettings($("settings").hidden); $("mode").focus(); });
    $("hide-settings").addEventListener("click", () => { showSettings(false); $("show-settings").focus(); });
    $("reset").addEventListener("click", () => {
        for (const id of FIELDS) if (id !== "theme") $(id).value = "";
        showMode();
        keepSettings();
    });
    $("settings").addEventListener("change", ev => {
        ev.target.classList.remove("wrong");
        notice("settings", "");
        showMode();
        showTheme();
        if (ev.target.id === "key") connect();
        keepSettings();
    });
    document.addEventListener("keydown", ev => {
        if (ev.key !== "Escape") return;
        if (busy) stop();
        else for (const id of ["settings", "list"]) if ($(id).contains(document.activeElement)) $("hide-" + id).click();
    });
    document.addEventListener("visibilitychange", watch);
    for (const v of VIEWS) {
        $("tab-" + v).addEventListener("click", () => show(v, false));
        $("tab-" + v).addEventListener("keydown", ev => {
            const step = { ArrowRight: 1, ArrowLeft: 2 }[ev.key];
            if (step) show(VIEWS[(VIEWS.indexOf(v) + step) % VIEWS.length], true);
        });
    }
    $("copy-curl").addEventListener("click", ev => copy(curl(), ev.target));
    $("copy-request").addEventListener("click", ev => copy(last.body, ev.target));
    $("copy-response").addEventListener("click", ev => copy(last.text, ev.target));
}

for (const [id, label, , , whole] of NUMBERS)
    $("numbers").append(el("div", null, el("label", { for: id, text: label }),
        el("input", { id, inputmode: whole ? "numeric" : "decimal", autocomplete: "off", placeholder: "default" })));
makeTiles();
listen();
show(VIEWS.find(v => location.hash === "#view-" + v) || "chat", false);
showSettings(matchMedia("(min-width: 1200px)").matches);
showList(matchMedia("(min-width: 1200px)").matches);
restore().then(() => {
    showTheme();
    showMode();
    connect();
    if (!$("chat").hidden && !isNarrow()) $("input").focus();
});
