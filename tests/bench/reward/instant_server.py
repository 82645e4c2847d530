"""Answers each request at once with the same score, so that the client is what is measured; prints its port."""

import asyncio

_BODY = b'{"score":1.25,"truncated":false,"tokens":3,"dropped_tokens":0}'
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(_BODY)


class Instant(asyncio.Protocol):
    """One connection: counts bytes until a request is whole."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the way back."""
        self.transport = transport
        self.received = b""

    def data_received(self, data: bytes) -> None:
        """Answer each whole request."""
        self.received += data
        while (end := self.received.find(b"\r\n\r\n")) >= 0:
            head = self.received[:end].lower()
            length = int(head.partition(b"content-length:")[2].split(b"\r\n")[0])
            if len(self.received) < end + 4 + length:
                return
            self.received = self.received[end + 4 + length :]
            self.transport.write(_HEAD + _BODY)  # type: ignore[attr-defined]


async def main() -> None:
    """Serve until killed."""
    server = await asyncio.get_running_loop().create_server(Instant, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
