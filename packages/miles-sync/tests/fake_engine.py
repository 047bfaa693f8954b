"""An engine that speaks the weight calls of the contract over real HTTP, with faults that a test can ask for.

Run as a script it serves in a process of its own: `python fake_engine.py MODEL.safetensors [fault ...]`; it prints its
port. Faults: `die-at-bucket-N` (SIGKILL to itself), `slow-bucket` (6 s), `wrong-digest`, `no-digests`, `refuse-pause`,
`refuse-begin`, `lose-commit-answer`, `ignore-commit`, `refuse-continue`, `flip-bit` (corrupts a copy of the segment).
"""

import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from safetensors.torch import load_file

from miles_core.errors import WeightSyncError
from miles_sync.digest import tensor_digest
from miles_sync.receivers.disk import read_folder
from miles_sync.receivers.shared_memory import open_manifest


class FakeEngine:
    def __init__(self, weights, *, faults=(), token=None, version="0"):
        self.weights = {name: tensor.clone() for name, tensor in weights.items()}
        self.version = version
        self.faults = set(faults)
        self.token = token
        self.staged = None
        self.paused = False
        self.calls = []
        self.buckets = 0
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join(timeout=5)

    def _handler(engine):
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_GET(self):
                self._serve({})

            def do_POST(self):
                self._serve(json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}"))

            def _serve(self, body):
                if engine.token and self.headers.get("Authorization") != f"Bearer {engine.token}":
                    return self._answer(401, {"error": {"message": "expected a bearer token"}})
                engine.calls.append(self.path)
                try:
                    return self._answer(200, engine.answer(self.path, body))
                except WeightSyncError as error:
                    return self._answer(400, {"error": {"message": str(error), "type": "weight_sync", "code": 400}})
                except ConnectionAbortedError:
                    self.close_connection = True
                    return None

            def _answer(self, status, body):
                data = json.dumps(body).encode()
                try:
                    self.send_response(status)
                    self.send_header("Content-Length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)
                except OSError:  # the client gave up
                    self.close_connection = True

        return Handler

    def answer(self, path, body):
        match path:
            case "/model_info":
                return {"model_path": "fake", "weight_version": self.version}
            case "/pause_generation":
                self._refuse("refuse-pause")
                assert body["mode"] in ("abort", "retract", "in_place")
                self.paused = True
            case "/continue_generation":
                self._refuse("refuse-continue")
                self.paused = False
            case "/begin_weight_update":
                self._refuse("refuse-begin")
                self.staged, self.buckets = {}, 0
            case "/update_weights_from_shared_memory":
                return self._stage_segment(body)
            case "/update_weights_from_disk":
                self._stage(read_folder(body["model_path"]))
                return {"success": True}
            case "/end_weight_update":
                return self._end(body)
            case _:
                raise WeightSyncError(f"no such call: {path}")
        return {}

    def _stage_segment(self, manifest):
        self.buckets += 1
        if f"die-at-bucket-{self.buckets}" in self.faults:
            os.kill(os.getpid(), signal.SIGKILL)
        if "slow-bucket" in self.faults:
            time.sleep(6.0)
        if "flip-bit" in self.faults:
            _flip_a_bit(manifest["segment"], manifest["tensors"][0]["offset"])
        digests = self._stage(open_manifest(manifest))
        if "wrong-digest" in self.faults:
            digests[next(iter(digests))] = "0" * 32
        return {"success": True} | ({} if "no-digests" in self.faults else {"digests": digests})

    def _stage(self, tensors):
        if self.staged is None:
            raise WeightSyncError("no transaction is open")
        digests = {}
        for name, tensor in tensors:
            target = self.weights.get(name)
            if target is None:
                raise WeightSyncError(f"tensor {name}: the model has no such parameter")
            if target.shape != tensor.shape or target.dtype != tensor.dtype:
                raise WeightSyncError(f"tensor {name}: expected {list(target.shape)}, found {list(tensor.shape)}")
            self.staged[name] = tensor
            digests[name] = tensor_digest(tensor)
        return digests

    def _end(self, body):
        if body.get("abort"):
            self.staged = None
            return {}
        missing = set(self.weights) - set(self.staged or {})
        if missing:
            raise WeightSyncError(f"tensor {min(missing)}: not staged, so nothing is committed")
        if "ignore-commit" in self.faults:
            return {}
        self.weights, self.staged, self.version = self.staged, None, body["weight_version"]
        if "lose-commit-answer" in self.faults:
            raise ConnectionAbortedError
        return {}

    def _refuse(self, fault):
        if fault in self.faults:
            raise WeightSyncError(f"{fault} by request")


def _flip_a_bit(segment, offset):
    with open(f"/dev/shm/{segment}", "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


if __name__ == "__main__":
    with FakeEngine(load_file(sys.argv[1]), faults=sys.argv[2:]) as served:
        print(served.server.server_port, flush=True)
        sys.stdin.read()
