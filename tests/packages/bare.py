"""A bare Debian in a folder, for tests that install what a user would install; tools/bare_root makes it."""
import os
import shutil
import subprocess

from checks import skip

# The minimal Debian that debootstrap makes once and all roots are copies of.
BASE = os.environ.get("ROSE_BARE_BASE", "/var/tmp/bare.base")


class BareRoot:
    """The folder `path`, removed at the end; `with BareRoot("container") as root`."""

    def __init__(self, name):
        self.path = f"/var/tmp/rose-{name}-{os.getpid()}"

    def run(self, command, stdin=b""):
        """Runs command in a clone of HEAD in a fresh root. None: it cannot be done here, and the test says so."""
        missing = [p for p in ("debootstrap", "git", "unshare", "chroot") if shutil.which(p) is None]
        if os.getuid() != 0 or missing:
            skip(os.path.basename(self.path), "a bare root needs " + (", ".join(missing) if missing else "root"))
            return None
        return subprocess.run(["sh", "tools/bare_root", self.path, *command], input=stdin, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, env=dict(os.environ, BASE=BASE))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        subprocess.run(["rm", "-rf", "--one-file-system", self.path], check=True)
