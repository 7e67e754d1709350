#include "cuda/model/gemm.h"

#include <algorithm>

#include "base/errors.h"
#include "base/status_macros.h"
#include "cuda/model/cublas_lt.h"

namespace longdecode::cuda {
namespace {

// The kernel of 1..8 tokens, as often as it takes: each time it reads W.
class OwnGemm final : public Gemm {
 public:
  explicit OwnGemm(const DeviceInfo& device) : device_(device) {}

  const std::string& name() const override { return name_; }
  int64_t workspace_bytes() const override { return 0; }

  Status run(const GemmArgs& args, void*, StreamHandle stream) override {
    LD_RETURN_IF_ERROR(validate(args));
    LinearArgs linear_args;
    linear_args.weight = args.weight;
    linear_args.bias = args.bias;
    linear_args.output = args.output;
    linear_args.num_rows = args.num_rows;
    linear_args.num_cols = args.num_cols;
    const int64_t y_bytes = args.output == LinearOutput::kStoreBf16 ? 2 : 4;
    for (int64_t token = 0; token < args.num_tokens; token += kMaxLinearTokens) {
      linear_args.x_bf16 = args.x + token * args.num_cols;
      linear_args.y = static_cast<char*>(args.y) + token * args.num_rows * y_bytes;
      linear_args.num_tokens =
          static_cast<int32_t>(std::min<int64_t>(kMaxLinearTokens, args.num_tokens - token));
      LD_RETURN_IF_ERROR(linear(linear_args, device_, stream));
    }
    return {};
  }

 private:
  DeviceInfo device_;
  std::string name_ = "own kernel";
};

}  // namespace

Status validate(const GemmArgs& args) {
  if (args.weight == nullptr || args.x == nullptr || args.y == nullptr) {
    return invalid_argument("gemm: weight, x or y is null");
  }
  if (args.num_rows < 1 || args.num_rows > INT32_MAX / 4) {
    return invalid_argument("gemm: num_rows is {}; 1 to 2^29 are allowed", args.num_rows);
  }
  if (args.num_cols < 8 || args.num_cols > INT32_MAX / 4 || args.num_cols % 8 != 0) {
    return invalid_argument("gemm: num_cols is {}; a positive multiple of 8 up to 2^29 is needed",
                            args.num_cols);
  }
  if (args.num_tokens < 1 || args.num_tokens > INT32_MAX) {
    return invalid_argument("gemm: num_tokens is {}; 1 to 2^31 - 1 are allowed", args.num_tokens);
  }
  if (args.output == LinearOutput::kSiluUpBf16) {
    return invalid_argument("gemm: output is kSiluUpBf16; kStoreF32, kStoreBf16, kAddF32");
  }
  if (args.bias != nullptr && args.output != LinearOutput::kStoreF32) {
    return invalid_argument("gemm: a bias needs the output kStoreF32");
  }
  return {};
}

Result<std::unique_ptr<Gemm>> Gemm::create(const DeviceInfo& device, Library library) {
  if (library == Library::kFind) {
    Result<std::unique_ptr<Gemm>> gemm = make_cublas_lt_gemm(device);
    if (gemm.ok() || gemm.status().code() != StatusCode::kUnavailable) return gemm;
  }
  return std::unique_ptr<Gemm>(std::make_unique<OwnGemm>(device));
}

}  // namespace longdecode::cuda
