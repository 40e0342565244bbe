// SPDX-License-Identifier: Apache-2.0

#include "bindings/commands.h"

#include <cstring>
#include <string_view>

#include "bindings/printed_text.h"
#include "client/output.h"
#include "wire/cell_frame.h"

namespace hutch {
namespace {

py::object Tuple(const char* kind, const FrameHeader& header, std::string_view payload) {
  CallUsage usage;
  if (header.kind == FrameKind::kCommandEnded && payload.size() == sizeof usage) {
    std::memcpy(&usage, payload.data(), sizeof usage);
    payload = {};
  }
  return py::make_tuple(kind, header.a, header.b, usage.cpu_us, usage.peak_kb,
                        py::bytes(payload.data(), payload.size()));
}

// A hostile cell sends what it likes.
py::object CommandFrame(const py::bytes& data) {
  const std::string_view frame(data);
  FrameHeader header;
  if (frame.size() < sizeof header || frame.size() > sizeof header + kMaxPayload) return py::none();
  std::memcpy(&header, frame.data(), sizeof header);
  if (header.magic != kFrameMagic || header.version != kFrameVersion) return py::none();
  const std::string_view payload = frame.substr(sizeof header);
  switch (header.kind) {
    case FrameKind::kCommandBegun:
      return Tuple("begun", header, {});
    case FrameKind::kCommandEnded:
      return Tuple("ended", header, payload);
    case FrameKind::kCommandDone:
      return Tuple("done", header, {});
    case FrameKind::kRaised:
      return header.b == payload.size() ? Tuple("raised", header, payload) : py::none();
    default:
      return py::none();
  }
}

}  // namespace

void BindCommands(py::module_& m) {
  m.def("command_frame", &CommandFrame);
  py::class_<Output>(m, "Output")
      .def(py::init<uint64_t>())
      .def("add", [](Output& output, int stream,
                     const py::bytes& data) { output.Add(stream & 1, std::string_view(data)); })
      .def("size", [](const Output& output, int stream) { return output.size(stream & 1); })
      .def("truncated",
           [](const Output& output, int stream) { return output.truncated(stream & 1); })
      .def("text",
           [](const Output& output, int stream) { return PrintedText(output.text(stream & 1)); });
}

}  // namespace hutch
