// SPDX-License-Identifier: Apache-2.0

// Module _core: the client and the result decoder, as thin as possible. Users call the typed
// package on top of it; _core.pyi is this file's interface.

#include <memory>
#include <string>

#include "bindings/beneath.h"
#include "bindings/client.h"
#include "bindings/commands.h"
#include "bindings/decode.h"
#include "bindings/fast_call.h"
#include "bindings/printed_text.h"
#include "bindings/result.h"
#include "environments/node.h"
#include "wire/egress_rules.h"
#include "wire/paths.h"

namespace hutch {
namespace {

py::dict PathsDict() {
  try {
    const Paths paths = FindPaths();
    py::dict d;
    d["service_user"] = paths.service_user;
    d["uid"] = paths.uid;
    d["gid"] = paths.gid;
    d["home"] = paths.home;
    d["run_dir"] = paths.run_dir;
    d["state_dir"] = paths.state_dir;
    d["instance"] = paths.instance;
    d["agent_socket"] = paths.agent_socket;
    d["agent_container"] = paths.agent_container();
    return d;
  } catch (const Error& error) {
    Raise(error);
  }
}

// A callable of Python's, or None.
PyOutput OutputTo(const py::object& callback) {
  if (callback.is_none()) return nullptr;
  return [callback](int stream, const py::bytes& text) { callback(stream, text); };
}

// The names of the parts of an Error, in order.
py::dict FieldsOfError() {
  py::dict fields;
  const py::object property = py::module_::import("builtins").attr("property");
  size_t place = 0;
  for (const char* name : {"code", "message", "hint", "may_have_run", "figures"}) {
    fields[name] = property(py::cpp_function([place](const py::object& self) -> py::object {
      const py::tuple args = self.attr("args");
      return place < args.size() ? py::object(args[place]) : py::object(py::dict());
    }));
    ++place;
  }
  return fields;
}

void BindErrors(py::module_& m) {
  CoreError() = py::reinterpret_steal<py::object>(
      PyErr_NewException("hutch._core.Error", PyExc_Exception, FieldsOfError().ptr()));
  m.attr("Error") = CoreError();
  // By value, as pybind11 asks. NOLINTNEXTLINE(performance-unnecessary-value-param)
  py::register_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const Error& error) {
      try {
        Raise(error);
      } catch (py::error_already_set& raised) {
        raised.restore();
      }
    }
  });
}

// What a call is made of.
void BindSent(py::module_& m) {
  py::class_<CancelToken>(m, "Cancel")
      .def(py::init<>())
      .def("cancel", &CancelToken::Cancel)
      .def_property_readonly("cancelled", &CancelToken::cancelled);

  py::class_<FunctionBlob>(m, "Function")
      .def(py::init<py::bytes>())
      .def_property_readonly("data",
                             [](const FunctionBlob& f) { return py::bytes(f.blob.bytes()); })
      .def_property_readonly("sha256", [](const FunctionBlob& f) { return Hex(f.digest); });

  py::class_<SharedMemory>(m, "SharedMemory", py::buffer_protocol())
      .def(py::init<size_t, bool>(), py::arg("size"), py::arg("executable") = false)
      .def_buffer([](SharedMemory& s) {
        return py::buffer_info(reinterpret_cast<uint8_t*>(s.data()),
                               static_cast<py::ssize_t>(s.size()), false);
      });
}

void BindTerms(py::module_& m) {
  py::class_<CallTerms>(m, "Terms")
      .def(py::init([](uint64_t timeout_ms, uint64_t cpu_ms, uint64_t output_bytes,
                       uint64_t result_bytes, uint64_t queue_ms, uint64_t calls_of_cell,
                       double age_of_cell_sec, uint64_t policy, bool network,
                       uint64_t memory_bytes) {
             return CallTerms{
                 {timeout_ms, cpu_ms, output_bytes, result_bytes, queue_ms, memory_bytes},
                 calls_of_cell,
                 age_of_cell_sec,
                 policy,
                 network};
           }),
           py::kw_only(), py::arg("timeout_ms"), py::arg("cpu_ms"), py::arg("output_bytes"),
           py::arg("result_bytes"), py::arg("queue_ms"), py::arg("calls_of_cell") = 0,
           py::arg("age_of_cell_sec") = 0.0, py::arg("policy") = 0, py::arg("network") = false,
           py::arg("memory_bytes") = 0)
      .def_property_readonly("timeout_ms", [](const CallTerms& t) { return t.limits.timeout_ms; })
      .def_property_readonly("cpu_ms", [](const CallTerms& t) { return t.limits.cpu_ms; })
      .def_property_readonly("output_bytes",
                             [](const CallTerms& t) { return t.limits.output_bytes; })
      .def_property_readonly("result_bytes",
                             [](const CallTerms& t) { return t.limits.result_bytes; })
      .def_readonly("calls_of_cell", &CallTerms::calls_of_cell)
      .def_readonly("policy", &CallTerms::policy);
}

void BindResult(py::module_& m) {
  py::class_<PyPayload>(m, "Payload", py::buffer_protocol())
      .def_property_readonly("body_size", [](const PyPayload& p) { return p.payload->body_size(); })
      .def("__len__", [](const PyPayload& p) { return p.payload->size(); })
      .def_buffer([](PyPayload& p) {
        return py::buffer_info(reinterpret_cast<uint8_t*>(p.payload->data()),
                               static_cast<py::ssize_t>(p.payload->size()), false);
      });

  py::class_<CallResult>(m, "CallResult")
      .def_readonly("status", &CallResult::status)
      .def_readonly("limit", &CallResult::limit)
      .def_property_readonly("detail", [](const CallResult& r) { return r.outcome().detail; })
      .def_readonly("payload", &CallResult::payload)
      .def_property_readonly("result_size",
                             [](const CallResult& r) { return r.outcome().result_size; })
      .def_property_readonly("network", &NetworkOf)
      .def_property_readonly("usage", &UsageOf)
      .def("as_outcome", &OutcomeOf, py::arg("outcome"), py::arg("usage"), py::arg("enforcement"))
      .def_property_readonly(
          "ended",
          [](const CallResult& r) { return Seconds(r.outcome().ended.time_since_epoch()); })
      .def_readwrite("environment_sec", &CallResult::environment_sec)
      .def_readwrite("worker_sec", &CallResult::worker_sec)
      .def_readwrite("queued_sec", &CallResult::queued_sec);
}

void BindTurns(py::module_& m) {
  py::class_<PyTurns>(m, "Turns")
      .def(
          "begin",
          [](PyTurns& t, const py::bytes& meta, const py::object& function,
             const py::bytes& arguments, const py::sequence& buffers, const CallTerms& terms,
             const py::object& output, double begun, const py::object& dialogue,
             const CancelToken* cancel) {
            const bool of_session = dynamic_cast<PySession*>(&t) != nullptr;
            auto bytes = std::make_unique<CallBytes>(meta, function, arguments, buffers, terms,
                                                     TimePoint(begun), of_session);
            t.Begin(std::move(bytes), OutputTo(output), dialogue, cancel);
          },
          py::arg("meta"), py::arg("function"), py::arg("arguments"), py::arg("buffers"),
          py::arg("terms"), py::arg("output"), py::arg("begun"), py::arg("dialogue"),
          py::arg("cancel") = py::none())
      .def("turn", &PyTurns::Turn)
      .def("answer", &PyTurns::Answer)
      .def("stop_clock", &PyTurns::StopClock, py::arg("stop"))
      .def("cancel", &PyTurns::Cancel)
      .def("end", [](PyTurns& t) { return MakeResult(t.End()); })
      .def_property_readonly("turn_fd", &PyTurns::turn_fd)
      .def_property_readonly("waits_at_end", &PyTurns::waits_at_end);

  py::class_<PyCall, PyTurns>(m, "Call").def("close", &PyCall::Close);
}

void BindSession(py::module_& m) {
  py::class_<PySession, PyTurns>(m, "Session")
      .def(
          "call",
          [](PySession& s, const py::bytes& meta, const py::object& function,
             const py::bytes& arguments, const py::sequence& buffers, const CallTerms& terms,
             const CancelToken* cancel, const py::object& output, double begun,
             const py::object& dialogue) {
            const CallBytes bytes(meta, function, arguments, buffers, terms, TimePoint(begun),
                                  true);
            return MakeResult(s.Call(bytes.request, cancel, OutputTo(output), dialogue));
          },
          py::arg("meta"), py::arg("function"), py::arg("arguments"), py::arg("buffers"),
          py::arg("terms"), py::arg("cancel") = py::none(), py::arg("output") = py::none(),
          py::arg("begun") = 0.0, py::arg("dialogue") = py::none())
      .def("exchange", &PySession::Exchange)
      .def_property_readonly("time_left", &PySession::TimeLeft)
      .def_property_readonly("has_ended", &PySession::HasEnded)
      .def_property_readonly("unsettled", &PySession::IsUnsettled)
      .def_property_readonly("calling", [](const PySession& s) { return s.session().calling(); })
      .def("settle", &PySession::Settle)
      .def("interrupt", &PySession::Interrupt)
      .def("take_back_interrupt", &PySession::TakeBackInterrupt)
      .def("restart", &PySession::Restart)
      .def("send_command", &PySession::SendCommand, py::arg("descriptors"))
      .def("look_for_commands", &PySession::LookForCommands)
      .def("count_use", &PySession::CountUse)
      .def("tell_command", &PySession::TellCommand, py::arg("id"), py::arg("ending"),
           py::arg("limit"), py::arg("run_sec"), py::arg("cpu_sec"), py::arg("policy"))
      .def("last_end", &PySession::LastEnd)
      .def("close", &PySession::Close)
      .def("abandon", &PySession::Abandon)
      .def_property_readonly("started", [](const PySession& s) { return s.session().started(); })
      .def_property_readonly("over", [](const PySession& s) { return s.session().over(); })
      .def_property_readonly("restarts", [](const PySession& s) { return s.session().restarts(); })
      .def_property_readonly("worker", [](const PySession& s) { return s.session().worker(); })
      .def_property_readonly("restartable",
                             [](const PySession& s) { return s.session().restartable(); });
}

void BindCalls(py::class_<PyClient>& client) {
  client
      .def("prepare", &PyClient::Prepare, py::arg("spec"), py::arg("timeout_ms"),
           py::arg("progress") = py::none(), py::arg("no_pool") = false)
      .def("warm", &PyClient::Warm, py::arg("key"), py::arg("cells"), py::arg("timeout_ms"))
      .def(
          "call",
          [](PyClient& c, const std::string& key, const py::bytes& meta, const py::object& function,
             const py::bytes& arguments, const py::sequence& buffers, const CallTerms& terms,
             const CancelToken* cancel, const py::object& output, double begun,
             const py::object& dialogue, bool streams) {
            CallBytes bytes(meta, function, arguments, buffers, terms, TimePoint(begun));
            const PyOutput to = OutputTo(output);
            if (dialogue.is_none()) return MakeResult(c.Call(key, bytes.request, cancel, to));
            bytes.request.streams = streams;
            return MakeResult(c.CallWithDialogue(key, bytes.request, cancel, to, dialogue));
          },
          py::arg("key"), py::arg("meta"), py::arg("function"), py::arg("arguments"),
          py::arg("buffers"), py::arg("terms"), py::arg("cancel") = py::none(),
          py::arg("output") = py::none(), py::arg("begun") = 0.0, py::arg("dialogue") = py::none(),
          py::arg("streams") = false)
      .def("call_in_turns", &PyClient::MakeCall, py::arg("key"))
      .def("session", &PyClient::MakeSession, py::arg("key"), py::arg("idle_ms"), py::arg("id"))
      .def("start", &PyClient::Start, py::arg("key"), py::arg("meta"), py::arg("function"),
           py::arg("arguments"), py::arg("buffers"), py::arg("terms"), py::arg("output"),
           py::arg("begun"))
      .def("cancel", &PyClient::Cancel, py::arg("call"))
      .def("next", &PyClient::Next, py::arg("patience_sec"))
      .def("conclude", &PyClient::Conclude, py::arg("open"))
      .def("end_background_calls", &PyClient::EndBackgroundCalls);
}

// What the agent itself is asked.
void BindQuestions(py::class_<PyClient>& client) {
  client.def("status", [](PyClient& c) { return c.Ask("status", 10'000); })
      .def("sessions", [](PyClient& c) { return c.Ask("sessions", 10'000); })
      .def(
          "metrics",
          [](PyClient& c, bool as_json) {
            return c.Ask(as_json ? "metrics json" : "metrics", 10'000);
          },
          py::arg("as_json") = false)
      .def("reload", [](PyClient& c) { c.Ask("reload", 10'000); })
      .def("environments", [](PyClient& c) { return c.Ask("environments", 30'000); })
      .def("remove_environment",
           [](PyClient& c, const std::string& digest) {
             return c.Ask("remove " + digest, 60'000) == "removed";
           })
      .def("stop_agent", [](PyClient& c, uint64_t drain_ms) {
        c.Ask("stop " + std::to_string(drain_ms), drain_ms + 10'000);
      });
}

void BindClient(py::module_& m) {
  const py::class_<OpenCall, std::shared_ptr<OpenCall>> open_call(m, "OpenCall");

  py::class_<PyClient> client(m, "Client");
  client.def(py::init<std::string, long>(), py::arg("socket"), py::arg("connect_uid") = -1)
      .def_property_readonly("pid", &PyClient::pid)
      .def_property_readonly("pressure", &PyClient::pressure)
      .def("abandon", &PyClient::Abandon)
      .def("close", &PyClient::Close);
  BindCalls(client);
  BindQuestions(client);

  py::class_<PyStopNotice>(m, "StopNotice")
      .def(py::init<std::string, long>(), py::arg("socket"), py::arg("connect_uid") = -1)
      .def("fileno", &PyStopNotice::fd)
      .def("read", &PyStopNotice::Read)
      .def("close", &PyStopNotice::Close);
}

// The rules of allow_network, the places of an agent, and files of the host.
void BindHost(py::module_& m) {
  m.def("egress_rule", [](const std::string& text) { return ToString(ParseEgressRule(text)); });
  m.def("normal_host",
        [](const std::string& name) { return NormalHost(name).value_or(std::string()); });
  m.def("paths", &PathsDict);
  m.def("open_beneath", &OpenBeneath, py::arg("directory"), py::arg("path"), py::arg("flags"),
        py::arg("mode") = 0);
}

}  // namespace
}  // namespace hutch

PYBIND11_MODULE(_core, m) {
  using namespace hutch;
  m.attr("VERSION") = kHutchVersion;
  m.attr("NODE_PACKAGE") = kNodePackage;
  m.attr("NODE_SHOWN") = kNodeShown;
  m.attr("FRAME_VERSION") = static_cast<int>(kFrameVersion);
  m.attr("MAX_PAYLOAD") = kMaxPayload;
  m.attr("INLINE_BYTES") = kMaxPayload - sizeof(CallUsage);
  BindErrors(m);
  BindSent(m);
  BindTerms(m);
  BindResult(m);
  BindTurns(m);
  BindSession(m);
  BindCommands(m);
  BindPrintedText(m);
  BindClient(m);
  BindHost(m);
  BindDecode(m);
  BindFastCall(m);
}
