#include "longdecode/kv_format.h"

#include <algorithm>
#include <array>
#include <span>

#include "base/errors.h"

namespace longdecode {
namespace {

Status check_one_of(const char* name, int32_t value, std::span<const int32_t> allowed) {
  if (std::find(allowed.begin(), allowed.end(), value) != allowed.end()) return {};
  return invalid_argument("{} is {}; allowed: {}", name, value,
                          fmt::join(allowed.begin(), allowed.end(), ", "));
}

constexpr std::array<int32_t, 5> kHeadDims = {64, 80, 96, 128, 256};
constexpr std::array<int32_t, 5> kPlainPageSizes = {1, 16, 32, 64, 128};
constexpr std::array<int32_t, 2> kTwoPlanePageSizes = {64, 128};

}  // namespace

Status validate(const KvFormat& format) {
  if (format.op != Op::kGqa && format.op != Op::kMla) {
    return invalid_argument("format.op is {}; allowed: 0 (gqa), 1 (mla)",
                            static_cast<int32_t>(format.op));
  }
  if (format.keys != KeyEncoding::kPlain && format.keys != KeyEncoding::kTwoPlane) {
    return invalid_argument("format.keys is {}; allowed: 0 (plain), 1 (two-plane)",
                            static_cast<int32_t>(format.keys));
  }
  const auto dtype = static_cast<int32_t>(format.dtype);
  if (dtype < 0 || dtype > 2) {
    return invalid_argument("format.dtype is {}; allowed: 0 (f32), 1 (f16), 2 (bf16)", dtype);
  }
  if (format.num_kv_heads < 1 || format.num_kv_heads > 1024) {
    return invalid_argument("format.num_kv_heads is {}; allowed: 1 to 1024", format.num_kv_heads);
  }
  const bool two_plane = format.keys == KeyEncoding::kTwoPlane;
  if (format.op == Op::kMla) {
    if (two_plane) {
      return Status(StatusCode::kUnsupported,
                    "format.keys is 1 (two-plane) with format.op 1 (mla); the latent cache is "
                    "plain, allowed: 0 (plain)");
    }
    if (format.num_kv_heads != 1 || format.key_dim != kMlaKeyDim ||
        format.value_dim != kMlaValueDim) {
      return invalid_argument(
          "format has num_kv_heads {}, key_dim {}, value_dim {}; mla allows 1, {}, {}",
          format.num_kv_heads, format.key_dim, format.value_dim, kMlaKeyDim, kMlaValueDim);
    }
  } else {
    if (Status status = check_one_of("format.key_dim", format.key_dim, kHeadDims); !status.ok()) {
      return status;
    }
    if (format.value_dim != format.key_dim) {
      return invalid_argument("format.value_dim is {}; gqa allows key_dim, here {}",
                              format.value_dim, format.key_dim);
    }
  }
  const std::span<const int32_t> pages =
      two_plane ? std::span<const int32_t>(kTwoPlanePageSizes) : kPlainPageSizes;
  return check_one_of("format.page_size", format.page_size, pages);
}

}  // namespace longdecode
