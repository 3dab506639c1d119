"""A schema registry over HTTP that tests can stop, start and give any answer; and Protobuf messages for it.

It has the part of the API that Confluent's client needs: register, look up by id and by GUID, the latest version.
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from uuid import uuid4

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2, wrappers_pb2

TYPES = descriptor_pb2.FieldDescriptorProto


class SchemaRegistry:
    """A registry on a separate port. ``answer``, if set, is the (status, body) of each answer."""

    def __init__(self) -> None:
        self.schemas: list[dict[str, Any]] = []
        self.answer: tuple[int, bytes] | None = None
        self.asked: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.silent = threading.Event()  # while it is set, questions are taken and not answered
        self._port = 0
        self._server: ThreadingHTTPServer | None = None
        self.start()

    @property
    def url(self) -> str:
        """The URL, also while it is stopped."""
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Listen, on the same port as before."""
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                registry.respond(self)

            def do_POST(self) -> None:
                registry.respond(self)

            def log_message(self, *_: Any) -> None:
                """Print nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        self._server.daemon_threads = True
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        """Refuse connections."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()

    def respond(self, request: BaseHTTPRequestHandler) -> None:
        """Answer a request, and close its connection, because an open connection would outlive ``stop()``."""
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        self.asked.append(request.path)
        self.headers.append(dict(request.headers))
        while self.silent.is_set():
            threading.Event().wait(0.02)
        status, answer = self.answer or self._found(request.path.split("?")[0], body)
        request.close_connection = True
        request.send_response(status)
        request.send_header("Content-Length", str(len(answer)))
        request.end_headers()
        request.wfile.write(answer)

    def _found(self, path: str, body: bytes) -> tuple[int, bytes]:
        parts = path.strip("/").split("/")
        if parts[0] == "subjects" and body:
            schema = {**json.loads(body), "guid": str(uuid4()), "id": len(self.schemas) + 1, "subject": parts[1]}
            self.schemas.append({**schema, "version": 1 + sum(s["subject"] == parts[1] for s in self.schemas)})
            return 200, json.dumps(self.schemas[-1]).encode()
        named = {"ids": "id", "guids": "guid"}.get(parts[1])
        schemas = [s for s in self.schemas if (str(s[named]) == parts[2] if named else s["subject"] == parts[1])]
        if not schemas:
            return 404, b'{"error_code": 40403, "message": "Schema not found"}'
        return 200, json.dumps(schemas[-1]).encode()


def _message(name: str, *fields: tuple[str, int, dict[str, Any]]) -> descriptor_pb2.DescriptorProto:
    descriptor = descriptor_pb2.DescriptorProto(name=name)
    for number, (field, kind, more) in enumerate(fields, 1):
        descriptor.field.add(name=field, number=number, type=kind, **{"label": TYPES.LABEL_OPTIONAL, **more})
    return descriptor


def shop() -> dict[str, Any]:
    """The classes that protoc would generate from ``shop.proto``, by their names: Order, Item, Payment."""
    several = {"label": TYPES.LABEL_REPEATED}
    order = _message(
        "Order",
        ("id", TYPES.TYPE_INT64, {}),
        ("note", TYPES.TYPE_STRING, {"proto3_optional": True, "oneof_index": 0}),
        ("at", TYPES.TYPE_MESSAGE, {"type_name": ".google.protobuf.Timestamp"}),
        ("state", TYPES.TYPE_ENUM, {"type_name": ".shop.State"}),
        ("items", TYPES.TYPE_MESSAGE, {"type_name": ".shop.Item", **several}),
        ("seal", TYPES.TYPE_BYTES, {}),
        ("prices", TYPES.TYPE_MESSAGE, {"type_name": ".shop.Order.PricesEntry", **several}),
        ("discount", TYPES.TYPE_MESSAGE, {"type_name": ".google.protobuf.DoubleValue"}),
        ("tags", TYPES.TYPE_STRING, several),
        ("best", TYPES.TYPE_MESSAGE, {"type_name": ".shop.Item"}),
    )
    order.oneof_decl.add(name="_note")
    entry = _message("PricesEntry", ("key", TYPES.TYPE_STRING, {}), ("value", TYPES.TYPE_INT32, {}))
    entry.options.map_entry = True
    order.nested_type.append(entry)
    item = _message("Item", ("sku", TYPES.TYPE_STRING, {}), ("count", TYPES.TYPE_UINT64, {}))
    payment = _message("Payment", ("id", TYPES.TYPE_INT64, {}))
    state = descriptor_pb2.EnumDescriptorProto(name="State")
    for number, name in enumerate(("UNKNOWN", "OPEN", "PAID")):
        state.value.add(name=name, number=number)
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    file.dependency.extend(["google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto"])
    file.message_type.extend([order, item, payment])
    file.enum_type.append(state)
    pool = descriptor_pool.DescriptorPool()
    for known in (timestamp_pb2, wrappers_pb2):
        pool.AddSerializedFile(known.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"shop.{name}"))
        for name in ("Order", "Item", "Payment")
    }


def message_class(full_name: str) -> Any:
    """The class that protoc would generate from a message with one field, ``int64 id``, and this full name.

    Capitalised parts are messages, each inside the one before; the others are the package.
    """
    parts = full_name.split(".")
    messages = [part for part in parts if part[0].isupper()]
    package = ".".join(parts[: -len(messages)])
    file = descriptor_pb2.FileDescriptorProto(name=f"{full_name}.proto", package=package, syntax="proto3")
    message = file.message_type.add(name=messages[0])
    for name in messages[1:]:
        message = message.nested_type.add(name=name)
    message.field.add(name="id", number=1, type=TYPES.TYPE_INT64, label=TYPES.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(full_name))
