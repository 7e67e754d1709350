// Flags of every command that runs a model: device, threads, attention. The method is the
// command's own flag, because some take one and some a list.
#ifndef LONGDECODE_TOOLS_SESSION_OPTIONS_H_
#define LONGDECODE_TOOLS_SESSION_OPTIONS_H_

#include <CLI/CLI.hpp>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "longdecode/attention.h"
#include "longdecode/status.h"
#include "runner/model/session.h"

namespace longdecode::tool {

struct SessionFlags {
  std::string device = "auto";
  int32_t num_threads = 0;  // 0: the CPUs of this process
  FfdOptions ffd;
  std::vector<int32_t> dense_layers;
  std::vector<std::string> layer_delta_texts;        // "LAYER=DELTA", as given
  std::vector<runner::LayerDelta> layer_deltas;      // filled by the check
  std::string kv_type = "auto";                      // f16 on the CPU, bf16 on CUDA
  std::vector<std::string> graphs = {"any-length"};  // one, but for benchmarks
  std::vector<std::string> cuda_flags;               // given; filled by the check
};

// -t alone, for a command without a method. num_threads 0: the CPUs of this process.
void add_thread_flag(CLI::App& command, int32_t& num_threads);
Status check_thread_flag(const CLI::App& command, int32_t num_threads);

void add_session_flags(CLI::App& command, SessionFlags& flags);

// After parsing, before any work and any note: every value is in range, and with --device cuda
// there is a GPU. Fills layer_deltas and cuda_flags.
Status check_session_flags(const CLI::App& command, SessionFlags& flags);

// The status of looking for the device, with the flag and its value named.
Status name_device(const std::string& name, const Status& status);

// Of a model that is there: every layer named by a flag exists.
Status check_layers(const SessionFlags& flags, const runner::ModelConfig& config);

// Those of the flags that are given, on the command line or in the environment.
std::vector<std::string> given_flags(const CLI::App& command,
                                     std::initializer_list<const char*> flags);

// Given flags that have no effect without FFD.
std::vector<std::string> given_ffd_flags(const CLI::App& command);

// On the CPU; put_on_cuda makes them options of a CUDA device.
Result<runner::SessionOptions> session_options(const SessionFlags& flags, Method method,
                                               int64_t context_len);
void put_on_cuda(const SessionFlags& flags, const DeviceInfo& device,
                 runner::SessionOptions& options);

// kUnsupported for a --kv-type that models on CUDA do not have.
Status check_cuda_kv_type(const SessionFlags& flags);

// Of a command that runs each model once.
Status check_one_graph(const SessionFlags& flags);
runner::GraphMode parse_graph(const std::string& name);

// "cpu" or "cuda".
const char* device_name(DeviceType type);

// "dense" or "ffd", checked before.
Method parse_method(const std::string& name);

}  // namespace longdecode::tool

#endif  // LONGDECODE_TOOLS_SESSION_OPTIONS_H_
