"""A bare Debian in a folder, for tests that install what a user would install; tools/bare_root makes it."""
import os
import shutil
import subprocess

from checks import skip

# The minimal Debian that debootstrap makes once and all roots are copies of.
BASE = os.environ.get("ROSE_BARE_BASE", "/var/tmp/bare.base")


def may_mount():
    """Whether this process can mount in namespaces of its own."""
    return subprocess.run(["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "mount", "-t", "tmpfs", "none", "/mnt"],
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0


class BareRoot:
    """The folder `path`, removed at the end; `with BareRoot("container") as root`."""

    def __init__(self, name):
        self.path = f"/var/tmp/rose-{name}-{os.getpid()}"

    def run(self, command, stdin=b""):
        """Runs command in a clone of HEAD in a fresh root. None: it cannot be done here, and the test says so."""
        missing = [p for p in ("debootstrap", "git", "unshare", "chroot") if shutil.which(p) is None]
        name = os.path.basename(self.path)
        if os.getuid() != 0 or missing:
            skip(name, "a bare root needs " + (", ".join(missing) if missing else "root"))
            return None
        if not may_mount():
            skip(name, "a bare root needs the right to mount")
            return None
        if not os.path.exists(os.path.join(BASE, "etc", "debian_version")) and not self.make_base():
            skip(name, "debootstrap could not make a Debian here; a network and a mirror are needed")
            return None
        return subprocess.run(["sh", "tools/bare_root", self.path, *command], input=stdin, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, env=dict(os.environ, BASE=BASE))

    def make_base(self):
        """Whether debootstrap made BASE. What a failed one left is removed, so that no later root starts from it."""
        made = subprocess.run(["sh", "tools/bare_root", self.path, "true"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, env=dict(os.environ, BASE=BASE))
        if made.returncode == 0:
            return True
        print(made.stdout[-2000:])
        subprocess.run(["rm", "-rf", "--one-file-system", BASE], check=True)
        return False

    def __enter__(self):
        return self

    def __exit__(self, *_):
        subprocess.run(["rm", "-rf", "--one-file-system", self.path], check=True)
