"""A consumer of KV events, as a cache-aware router has one: definitions of vLLM's messages, and the set of pages that
they give."""
import time

import msgspec
import zmq

END = (1 << 64) - 1  # -1: the last answer of a replay


class Event(msgspec.Struct, array_like=True, omit_defaults=True, tag=True, forbid_unknown_fields=True):
    pass


class BlockStored(Event):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[list[str] | None] | None = None


class BlockRemoved(Event):
    block_hashes: list[int]
    medium: str | None = None


class AllBlocksCleared(Event):
    pass


class Batch(msgspec.Struct, array_like=True, omit_defaults=True, forbid_unknown_fields=True):
    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


class MapStored(msgspec.Struct, tag="BlockStored", forbid_unknown_fields=True):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[list[str] | None] | None = None


class MapRemoved(msgspec.Struct, tag="BlockRemoved", forbid_unknown_fields=True):
    block_hashes: list[int]
    medium: str | None


class MapCleared(msgspec.Struct, tag="AllBlocksCleared", forbid_unknown_fields=True):
    pass


class MapBatch(Batch, array_like=True):
    """A batch of a newer version of vLLM: an array as well, but its events are maps."""
    events: list[MapStored | MapRemoved | MapCleared]


decoder = msgspec.msgpack.Decoder(Batch)
map_decoder = msgspec.msgpack.Decoder(MapBatch)
KINDS = {MapStored: BlockStored, MapRemoved: BlockRemoved, MapCleared: AllBlocksCleared}


def decode(payload, maps):
    if not maps:
        return decoder.decode(payload)
    batch = map_decoder.decode(payload)
    return Batch(batch.ts, [KINDS[type(e)](**msgspec.structs.asdict(e)) for e in batch.events], batch.data_parallel_rank)


class Fault(Exception):
    """The events contradict each other."""


class Pages:
    """Pages by hash: (parent's hash, token ids, extra keys)."""

    def __init__(self, maps=False):
        self.pages, self.maps = {}, maps
        self.n = {BlockStored: 0, BlockRemoved: 0, AllBlocksCleared: 0}

    def apply(self, payload):
        batch = decode(payload, self.maps)
        if batch.data_parallel_rank != 0 or not batch.events or abs(batch.ts - time.time()) > 3600:
            raise Fault(f"batch {batch}")
        for e in batch.events:
            self.n[type(e)] += 1
            if isinstance(e, BlockStored):
                self.store(e)
            elif isinstance(e, BlockRemoved):
                for h in e.block_hashes:
                    if h not in self.pages or any(parent == h for parent, _, _ in self.pages.values()):
                        raise Fault(f"{h} is removed: unknown, or a child is left")
                    del self.pages[h]
            else:
                self.pages.clear()

    def store(self, e):
        n, size = len(e.block_hashes), e.block_size
        extra = e.extra_keys or [None] * n
        if size != 16 or len(e.token_ids) != n * size or len(extra) != n or e.medium != "GPU" or e.lora_id is not None:
            raise Fault(str(e))
        parent = e.parent_block_hash
        if parent is not None and parent not in self.pages:
            raise Fault(f"unknown parent {parent}")
        for i, h in enumerate(e.block_hashes):
            if h in self.pages or not 0 <= h < 1 << 64:
                raise Fault(f"{h} is stored twice")
            self.pages[h] = (parent, tuple(e.token_ids[i * size:(i + 1) * size]), tuple(extra[i] or ()))
            parent = h

    def match(self, ids):
        """Tokens of the longest cached prefix without a salt."""
        known = {(parent, tokens): h for h, (parent, tokens, extra) in self.pages.items() if not extra}
        parent, n = None, 0
        while (h := known.get((parent, tuple(ids[n:n + 16])))) is not None:
            parent, n = h, n + 16
        return n


class Subscriber:
    """Follows a server, and asks for what it missed."""

    def __init__(self, context, endpoint, replay, topic=b"", bind=False, maps=False):
        self.set, self.next, self.gaps, self.context, self.replay_at = Pages(maps), 0, [], context, replay
        self.topic = topic
        self.socket = context.socket(zmq.SUB)
        (self.socket.bind if bind else self.socket.connect)(endpoint)
        self.socket.subscribe(topic)

    def replay(self, first):
        """[(number, payload)] from number `first` on."""
        s = self.context.socket(zmq.DEALER)
        s.connect(self.replay_at)
        try:
            s.send_multipart([b"", first.to_bytes(8, "big")])
            got = []
            while s.poll(60000):
                empty, *topic, number, payload = s.recv_multipart()
                end = int.from_bytes(number, "big") == END
                if empty or topic != ([b"" if end else self.topic] if self.set.maps else []):
                    raise Fault(f"delimiter {empty!r}, topic {topic}")
                if end:
                    if payload:
                        raise Fault(f"the end marker has {payload!r}")
                    return got
                got.append((int.from_bytes(number, "big"), payload))
            raise Fault("the replay has no end")
        finally:
            s.close(0)

    def take(self, number, payload):
        self.gaps += range(self.next, number)
        self.set.apply(payload)
        self.next = number + 1

    def read(self, wait_ms=0):
        """Applies what has come. True: something had."""
        if not self.socket.poll(wait_ms):
            return False
        topic, number, payload = self.socket.recv_multipart()
        number = int.from_bytes(number, "big")
        if number < self.next:  # a replay had it
            return True
        if number > self.next and self.replay_at is not None:
            for old, again in self.replay(self.next):
                if old < number and old >= self.next:
                    self.take(old, again)
        self.take(number, payload)
        return True

    def catch_up(self):
        """Applies all that the server has published, also what this subscriber came too late for."""
        for number, payload in self.replay(self.next):
            if number >= self.next:
                self.take(number, payload)

    def close(self):
        self.socket.close(0)
