// A real model on the CPU and on the CUDA device: greedy text after a long prompt.
//   real_model_check MODEL.gguf TEXT [prompt_tokens [num_tokens]]
// Prints where the texts part, with both devices' two largest logits there. Exit status 1 when they
// part although the CPU's logits are further apart than the devices' logits differ; 77 without a
// device.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/status_macros.h"
#include "longdecode/attention.h"
#include "runner/model/session.h"
#include "runner/tokenizer/from_gguf.h"

namespace longdecode::runner {
namespace {

struct TopTwo {
  int32_t first = 0;
  int32_t second = 0;
};

TopTwo top_two(std::span<const float> logits) {
  std::vector<int32_t> ids(logits.size());
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
  std::partial_sort(ids.begin(), ids.begin() + 2, ids.end(), [&](int32_t a, int32_t b) {
    return logits[size_t(a)] > logits[size_t(b)] ||
           (logits[size_t(a)] == logits[size_t(b)] && a < b);
  });
  return {ids[0], ids[1]};
}

void print_top(const char* name, std::span<const float> logits) {
  const TopTwo top = top_two(logits);
  fmt::print("  {}: token {} {:.5f}, token {} {:.5f}\n", name, top.first, logits[size_t(top.first)],
             top.second, logits[size_t(top.second)]);
}

Result<Session> open(const std::shared_ptr<const Model>& model, DeviceType type, int64_t context) {
  SessionOptions options;
  options.context_len = context;
  options.kv_dtype = type == DeviceType::kCuda ? DType::kBF16 : DType::kF16;
  LD_ASSIGN_OR_RETURN(options.device, detect_device(type));
  return Session::create(model, options);
}

Status check(const std::string& model_path, const std::string& text_path, int64_t prompt_tokens,
             int64_t num_tokens) {
  LD_ASSIGN_OR_RETURN(const auto model, Model::load(model_path));
  LD_ASSIGN_OR_RETURN(const auto tokenizer, load_tokenizer(model->file()));
  std::ifstream file(text_path);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  std::vector<int32_t> prompt = tokenizer.encode(text, {}).ids;
  if (static_cast<int64_t>(prompt.size()) < prompt_tokens) {
    return invalid_argument("'{}' has {} tokens; {} are needed", text_path, prompt.size(),
                            prompt_tokens);
  }
  prompt.resize(static_cast<size_t>(prompt_tokens));
  LD_ASSIGN_OR_RETURN(Session cpu, open(model, DeviceType::kCpu, prompt_tokens + num_tokens));
  LD_ASSIGN_OR_RETURN(Session gpu, open(model, DeviceType::kCuda, prompt_tokens + num_tokens));
  LD_ASSIGN_OR_RETURN(Session forced, open(model, DeviceType::kCuda, prompt_tokens + num_tokens));
  LD_RETURN_IF_ERROR(cpu.prefill(prompt, nullptr));
  LD_RETURN_IF_ERROR(gpu.prefill(prompt, nullptr));
  LD_RETURN_IF_ERROR(forced.prefill(prompt, nullptr));
  std::vector<int32_t> on_gpu;
  GenerateRequest request;
  request.sampler.temperature = 0.0f;
  request.max_tokens = num_tokens;
  request.on_token = [&](int32_t token) {
    on_gpu.push_back(token);
    return TokenVerdict::kContinue;
  };
  LD_RETURN_IF_ERROR(gpu.generate(request).status());
  // The GPU fed with the CPU's tokens: how far its logits are from the CPU's.
  double largest_error = 0.0;
  int64_t agreements = 0;
  int64_t first_difference = -1;
  bool explained = true;
  for (int64_t i = 0; i < num_tokens; ++i) {
    double error = 0.0;
    for (size_t id = 0; id < cpu.logits().size(); ++id) {
      error = std::max(error, std::abs(double(cpu.logits()[id]) - double(forced.logits()[id])));
    }
    largest_error = std::max(largest_error, error);
    const TopTwo top = top_two(cpu.logits());
    const bool same = top_two(forced.logits()).first == top.first;
    agreements += same ? 1 : 0;
    if (!same) {
      const double gap =
          double(cpu.logits()[size_t(top.first)]) - double(cpu.logits()[size_t(top.second)]);
      explained = explained && gap <= 2.0 * error;
      fmt::print("token {} differs: gap {:.5f} on the CPU, largest logit error {:.5f}\n", i, gap,
                 error);
      print_top("cpu", cpu.logits());
      print_top("cuda", forced.logits());
    }
    if (first_difference < 0 && on_gpu[size_t(i)] != top.first) first_difference = i;
    if (i + 1 == num_tokens) break;
    LD_RETURN_IF_ERROR(cpu.decode(top.first));
    LD_RETURN_IF_ERROR(forced.decode(top.first));
  }
  fmt::print(
      "prompt {} tokens, {} generated: {} agree when both follow the CPU's text, "
      "first difference of the free texts {}, largest logit error {:.5f}\n",
      prompt_tokens, num_tokens, agreements,
      first_difference < 0 ? std::string("none") : fmt::format("{}", first_difference),
      largest_error);
  if (explained) return Status();
  return make_status(StatusCode::kInternal, "the texts part where no rounding explains it");
}

}  // namespace
}  // namespace longdecode::runner

int main(int argc, char** argv) {
  using longdecode::DeviceType;
  if (argc < 3) {
    fmt::print(stderr, "usage: real_model_check MODEL TEXT [prompt_tokens [num_tokens]]\n");
    return 2;
  }
  if (const auto device = longdecode::detect_device(DeviceType::kCuda); !device.ok()) {
    fmt::print("skipped: {}\n", device.status().message());
    return 77;
  }
  const longdecode::Status status =
      longdecode::runner::check(argv[1], argv[2], argc > 3 ? std::atoll(argv[3]) : 4000,
                                argc > 4 ? std::atoll(argv[4]) : 128);
  if (!status.ok()) fmt::print(stderr, "{}\n", status.message());
  return status.ok() ? 0 : 1;
}
