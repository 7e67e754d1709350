#include <fmt/format.h>

#include <cmath>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/float_convert.h"
#include "base/status_macros.h"
#include "commands.h"
#include "list_option.h"
#include "model_file.h"
#include "option_checks.h"
#include "output.h"
#include "output_flags.h"
#include "progress.h"
#include "runner/model/session.h"
#include "safetensors.h"
#include "session_options.h"
#include "text_tokens.h"

namespace longdecode::tool {
namespace {

constexpr const char* kExamples = R"(
Writes the tensors layers.N.q, layers.N.k and layers.N.v [tokens, heads, head_dim] of the chosen
layers, after RoPE, as a safetensors file. Channels are in the order of the model file: llama models
rotate the pairs (2 i, 2 i + 1).

Example:
  longdecode dump-qkv -m model.gguf -f book.txt -c 4096 --layers 0,5,29 -o qkv.safetensors)";

struct DumpOptions {
  std::string model_path;
  std::string text_path;
  std::string output_path;
  int64_t context_len = 0;
  std::vector<int32_t> layers;  // empty: all
  std::string dtype = "f32";
  int32_t num_threads = 0;
  bool progress = false;
};

// Puts what the session's layers show into the file.
class Dump {
 public:
  Dump(const runner::ModelConfig& config, DType dtype, std::vector<int32_t> layers)
      : config_(config), dtype_(dtype), layers_(std::move(layers)) {}

  std::vector<TensorEntry> entries(int64_t num_tokens) const {
    std::vector<TensorEntry> all;
    for (const int32_t layer : layers_) {
      const auto add = [&](const char* name, int32_t num_heads) {
        all.push_back({fmt::format("layers.{}.{}", layer, name),
                       dtype_,
                       {num_tokens, num_heads, config_.head_dim}});
      };
      add("q", config_.num_q_heads);
      add("k", config_.num_kv_heads);
      add("v", config_.num_kv_heads);
    }
    return all;
  }

  Status write(const runner::LayerTensors& tensors, SafetensorsWriter& writer) {
    for (size_t i = 0; i < layers_.size(); ++i) {
      if (layers_[i] != tensors.layer_idx) continue;
      LD_RETURN_IF_ERROR(write_rows(tensors, 3 * i, tensors.q, config_.q_dim(), writer));
      LD_RETURN_IF_ERROR(write_rows(tensors, 3 * i + 1, tensors.k, config_.kv_dim(), writer));
      LD_RETURN_IF_ERROR(write_rows(tensors, 3 * i + 2, tensors.v, config_.kv_dim(), writer));
    }
    return {};
  }

 private:
  Status write_rows(const runner::LayerTensors& tensors, size_t tensor_idx, const float* values,
                    int64_t row, SafetensorsWriter& writer) {
    const int64_t count = tensors.num_tokens * row;
    const int64_t element = dtype_bytes(dtype_);
    const int64_t offset = tensors.first_token * row * element;
    if (dtype_ == DType::kF32) return writer.write(tensor_idx, offset, values, 4 * count);
    halves_.resize(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
      const uint16_t half = f32_to_f16(values[i]);
      if (std::isinf(f16_to_f32(half)) && !std::isinf(values[i])) {
        return invalid_argument("--dtype is f16; layer {} has the value {} and f16 ends at 65504",
                                tensors.layer_idx, values[i]);
      }
      halves_[static_cast<size_t>(i)] = half;
    }
    return writer.write(tensor_idx, offset, halves_.data(), element * count);
  }

  const runner::ModelConfig& config_;
  DType dtype_;
  std::vector<int32_t> layers_;
  std::vector<uint16_t> halves_;
};

Result<std::vector<int32_t>> choose_layers(const std::vector<int32_t>& given,
                                           const runner::ModelConfig& config) {
  std::vector<bool> seen(static_cast<size_t>(config.num_layers));
  for (const int32_t layer : given) {
    if (layer < 0 || layer >= config.num_layers) {
      return invalid_argument("--layers has {}; the model has the layers 0 to {}", layer,
                              config.num_layers - 1);
    }
    if (seen[static_cast<size_t>(layer)]) return invalid_argument("--layers has {} twice", layer);
    seen[static_cast<size_t>(layer)] = true;
  }
  if (!given.empty()) return given;
  std::vector<int32_t> all(static_cast<size_t>(config.num_layers));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

Status run_dump(const DumpOptions& options) {
  LD_RETURN_IF_ERROR(
      check_own_file("-o", options.output_path, {options.model_path, options.text_path}));
  LD_RETURN_IF_ERROR(create_output("-o", options.output_path).status());
  LD_ASSIGN_OR_RETURN(const auto model, load_model(options.model_path));
  LD_ASSIGN_OR_RETURN(auto layers, choose_layers(options.layers, model->config()));
  LD_ASSIGN_OR_RETURN(const auto tokens,
                      read_text_tokens(options.text_path, *model, options.context_len, 1));
  const auto num_tokens = static_cast<int64_t>(tokens.size());
  Dump dump(model->config(), options.dtype == "f16" ? DType::kF16 : DType::kF32, std::move(layers));
  const std::vector<TensorEntry> entries = dump.entries(num_tokens);
  const std::map<std::string, std::string> metadata = {{"model", model->config().name},
                                                       {"num_tokens", std::to_string(num_tokens)}};
  LD_ASSIGN_OR_RETURN(auto writer,
                      SafetensorsWriter::create(options.output_path, entries, metadata));
  SessionFlags flags;
  flags.num_threads = options.num_threads;
  LD_ASSIGN_OR_RETURN(auto session_options, session_options(flags, Method::kDense, num_tokens));
  session_options.observer = [&](const runner::LayerTensors& tensors) {
    return dump.write(tensors, writer);
  };
  LD_ASSIGN_OR_RETURN(auto session, runner::Session::create(model, session_options));
  LD_RETURN_IF_ERROR(session.prefill(tokens, Progress("prefill", options.progress)));
  LD_RETURN_IF_ERROR(writer.commit());
  int64_t num_bytes = 0;
  for (const TensorEntry& entry : entries) num_bytes += entry.num_bytes();
  return write_stdout(fmt::format("{}: {} tensors, {} tokens, {:.1f} MiB\n", options.output_path,
                                  entries.size(), num_tokens, double(num_bytes) / (1 << 20)));
}

Status check(const CLI::App& command, const DumpOptions& options) {
  LD_RETURN_IF_ERROR(check_model_path(options.model_path));
  if (options.text_path.empty()) return invalid_argument("no text: give -f FILE");
  if (options.output_path.empty()) return invalid_argument("no output: give -o FILE");
  LD_RETURN_IF_ERROR(check_within("-c", options.context_len, 0, kMaxCount));
  LD_RETURN_IF_ERROR(check_thread_flag(command, options.num_threads));
  return check_choice("--dtype", options.dtype, {"f32", "f16"});
}

}  // namespace

void add_dump_qkv(CLI::App& app, Status& outcome) {
  CLI::App* command =
      app.add_subcommand("dump-qkv", "Write a model's queries, keys and values over a text");
  auto options = std::make_shared<DumpOptions>();
  command->option_defaults()->always_capture_default();
  add_text_flags(*command, options->model_path, options->context_len, "0: all, ");
  command->add_option("-f,--file", options->text_path, "Text, plain UTF-8; -: stdin (required)")
      ->type_name("FILE");
  command->add_option("-o,--output", options->output_path, "Output file (required)")
      ->type_name("FILE");
  add_list_option(*command, "--layers", options->layers, "Layers, e.g. 0,5,29 (default: all)")
      ->type_name("LAYERS")
      ->default_str("");
  command->add_option("--dtype", options->dtype, "f32 or f16");
  add_thread_flag(*command, options->num_threads);
  add_progress_flag(*command, options->progress);
  command->footer(kExamples);
  command->callback([command, options, &outcome] {
    outcome = check(*command, *options);
    if (outcome.ok()) outcome = run_dump(*options);
  });
}

}  // namespace longdecode::tool
