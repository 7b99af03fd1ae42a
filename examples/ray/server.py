"""Replicas of an OpenAI server behind one address, with Ray Serve. In this folder:

    serve run server:app model=/models/model cpus=4
    serve run server:app model=/models/model gpus=1 min_replicas=1 max_replicas=4 options="--max-num-seqs 64"

Each replica is a process of Ray that runs `roseinfer serve` on a Unix socket and passes requests on to it, byte by byte. The
program must be installed on every machine, and MODEL must exist there.
"""
import asyncio
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from typing import Any, Dict

import aiohttp
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel
from ray import serve

# Headers that belong to one connection (RFC 9110, section 7.6.1).
OF_CONNECTION = {"connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"}
METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
api = FastAPI(openapi_url=None)  # no pages of FastAPI's own


class Settings(BaseModel):
    """The arguments of `serve run`, or `args` of a configuration file of Serve."""
    model: str
    options: str = ""  # more options of `roseinfer serve`
    cpus: int = 1  # of a replica, and its compute threads
    gpus: float = 0  # of a replica
    min_replicas: int = 1
    max_replicas: int = 1  # more than min_replicas: Serve starts and ends replicas by the number of requests
    max_ongoing_requests: int = 256  # of a replica; further requests wait in Ray's proxy
    target_ongoing_requests: float = 32  # of a replica; with more, Serve starts another
    autoscaling: Dict[str, Any] = {}  # further members of Serve's autoscaling_config


@serve.deployment(health_check_period_s=1, graceful_shutdown_wait_loop_s=0.5, graceful_shutdown_timeout_s=120)
@serve.ingress(api)
class Replica:
    async def __init__(self, model: str, options: list):
        program = shutil.which("roseinfer", path=os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"])
        if program is None:
            raise RuntimeError("the program roseinfer is neither in PATH nor next to Python; install roseinfer's wheel here")
        self.folder = tempfile.TemporaryDirectory(prefix="roseinfer-")
        path = os.path.join(self.folder.name, "socket")
        # A replica may be killed: its server must not stay behind and hold a GPU.
        self.server = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", program, "serve", model, "--uds", path, *options])
        self.session = aiohttp.ClientSession("http://localhost", auto_decompress=False, timeout=aiohttp.ClientTimeout(),
                                             connector=aiohttp.UnixConnector(path, limit=0))
        while not await self.says_200("/ready"):
            if self.server.poll() is not None:
                raise RuntimeError(f"roseinfer serve ended with exit code {self.server.returncode}; its log is above")
            await asyncio.sleep(0.05)

    async def says_200(self, path: str) -> bool:
        try:
            async with self.session.get(path) as r:
                return r.status == 200
        except aiohttp.ClientError:
            return False

    async def check_health(self) -> None:
        """Serve replaces a replica that has died at once, and one whose check fails after three failures."""
        if self.server.poll() is not None:
            print(f"roseinfer serve ended with exit code {self.server.returncode}: this replica also ends", file=sys.stderr, flush=True)
            os._exit(1)
        if not await self.says_200("/health"):
            raise RuntimeError("the engine has failed: GET /health does not answer with 200")

    async def __del__(self) -> None:
        """Serve calls this when the last request of a replica has ended."""
        self.server.terminate()
        await asyncio.to_thread(self.server.wait)
        await self.session.close()
        self.folder.cleanup()

    @api.api_route("/{path:path}", methods=METHODS)
    async def forward(self, request: Request):
        target = request.scope["raw_path"].decode() + ("?" + request.url.query if request.url.query else "")
        headers = [(k, v) for k, v in request.headers.items() if k not in OF_CONNECTION | {"host"}]
        try:
            r = await self.session.request(request.method, target, headers=headers, data=await request.body())
        except aiohttp.ClientError as e:
            return JSONResponse({"error": {"message": f"the server of this replica is gone: {e}", "type": "server_error"}}, 503)

        async def pieces():
            async with r:  # a client that leaves ends this generator, and the server then cancels the request
                async for piece in r.content.iter_any():
                    yield piece

        return StreamingResponse(pieces(), r.status, {k: v for k, v in r.headers.items() if k.lower() not in OF_CONNECTION})


def app(args: Settings) -> serve.Application:
    options = ["--threads", str(args.cpus), *(["--device", "cuda"] if args.gpus else []), *shlex.split(args.options)]
    scale = {"num_replicas": args.min_replicas}
    if args.max_replicas > args.min_replicas:
        scale = {"autoscaling_config": {"min_replicas": args.min_replicas, "max_replicas": args.max_replicas,
                                        "target_ongoing_requests": args.target_ongoing_requests, **args.autoscaling}}
    return Replica.options(max_ongoing_requests=args.max_ongoing_requests, **scale,
                           ray_actor_options={"num_cpus": args.cpus, "num_gpus": args.gpus}).bind(args.model, options)
