#include "support.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>

#include "base/dtype_name.h"

namespace longdecode::tool {
namespace {

constexpr int64_t kProbeKvLen = 65536;
// Ends of the ranges that are asked for, beyond what the library has.
constexpr int32_t kMaxHeadDim = 640;
constexpr int32_t kMaxPageSize = 512;
constexpr int32_t kMaxGroup = 256;
constexpr int32_t kMaxQueryLenAsked = 16;
constexpr DType kDTypes[] = {DType::kF32, DType::kF16, DType::kBF16};

struct Shape {
  Op op = Op::kGqa;
  Method method = Method::kDense;
  int32_t num_q_heads = 32;
  int32_t num_kv_heads = 8;
  int32_t head_dim = 128;
  int32_t page_size = 128;
  DType dtype = DType::kBF16;
  int32_t query_len = 1;
  float soft_cap = 0.0f;
  int64_t sliding_window = 0;
  bool learned_sinks = false;
};

const char* op_name(Op op) { return op == Op::kMla ? "mla" : "gqa"; }
const char* method_name(Method method) { return method == Method::kFfd ? "ffd" : "dense"; }

DecodeDesc describe(const Shape& shape) {
  const KeyEncoding keys =
      shape.method == Method::kFfd ? KeyEncoding::kTwoPlane : KeyEncoding::kPlain;
  DecodeDesc desc;
  desc.method = shape.method;
  desc.format = shape.op == Op::kMla ? KvFormat::mla(shape.dtype, shape.page_size)
                                     : KvFormat::gqa(keys, shape.dtype, shape.num_kv_heads,
                                                     shape.head_dim, shape.page_size);
  desc.format.keys = keys;
  desc.num_q_heads = shape.num_q_heads;
  desc.max_kv_len = kProbeKvLen;
  desc.max_query_len = shape.query_len;
  desc.soft_cap = shape.soft_cap;
  desc.sliding_window = shape.sliding_window;
  desc.learned_sinks = shape.learned_sinks;
  if (shape.op == Op::kMla) desc.softmax_scale = 0.1f;  // MLA has no default
  return desc;
}

SupportRow make_row(Op op, Method method, const DeviceInfo& device) {
  SupportRow row;
  row.device = device.type == DeviceType::kCpu ? "cpu" : "cuda";
  row.op = op_name(op);
  row.method = method_name(method);
  Shape base{.op = op, .method = method};
  if (op == Op::kMla) base.num_q_heads = 16, base.num_kv_heads = 1, base.page_size = 64;
  const Result<KernelChoice> choice = select_kernel(describe(base), device);
  row.supported = choice.ok();
  if (!choice.ok()) {
    row.reason = choice.status().message();
    return row;
  }
  row.kernel = choice->name;
  row.isa = choice->isa;
  const auto with = [&](const std::function<void(Shape&)>& change) {
    Shape shape = base;
    change(shape);
    return select_kernel(describe(shape), device).ok();
  };
  const auto column = [&](int32_t max, std::vector<int32_t>& values,
                          const std::function<void(Shape&, int32_t)>& set) {
    for (int32_t value = 1; value <= max; ++value) {
      if (with([&](Shape& shape) { set(shape, value); })) values.push_back(value);
    }
  };
  if (op == Op::kMla) {
    row.head_dims = {kMlaKeyDim};
  } else {
    column(kMaxHeadDim, row.head_dims, [](Shape& s, int32_t dim) { s.head_dim = dim; });
  }
  column(kMaxGroup, row.groups, [](Shape& s, int32_t n) { s.num_q_heads = n * s.num_kv_heads; });
  column(kMaxPageSize, row.page_sizes, [](Shape& s, int32_t size) { s.page_size = size; });
  column(kMaxQueryLenAsked, row.query_lens, [](Shape& s, int32_t len) { s.query_len = len; });
  for (DType dtype : kDTypes) {
    if (with([&](Shape& s) { s.dtype = dtype; })) row.dtypes.push_back(dtype_name(dtype));
  }
  if (with([](Shape& s) { s.soft_cap = 30.0f; })) row.options.push_back("soft_cap");
  if (with([](Shape& s) { s.sliding_window = 4096; })) row.options.push_back("sliding_window");
  if (with([](Shape& s) { s.learned_sinks = true; })) row.options.push_back("learned_sinks");
  return row;
}

// "1-16", "64 128".
std::string ranges(const std::vector<int32_t>& values) {
  std::string text;
  for (size_t i = 0; i < values.size(); ++i) {
    const size_t first = i;
    while (i + 1 < values.size() && values[i + 1] == values[i] + 1) ++i;
    if (!text.empty()) text += ' ';
    text += fmt::format("{}", values[first]);
    if (i > first) text += fmt::format("-{}", values[i]);
  }
  return text;
}

}  // namespace

std::vector<SupportRow> support_matrix(const DeviceInfo& device) {
  return {make_row(Op::kGqa, Method::kDense, device), make_row(Op::kGqa, Method::kFfd, device),
          make_row(Op::kMla, Method::kDense, device), make_row(Op::kMla, Method::kFfd, device)};
}

std::string support_table(const std::vector<SupportRow>& rows) {
  constexpr size_t kColumns = 9;
  std::vector<std::array<std::string, kColumns>> lines = {
      {"device", "op", "method", "kernel", "head_dim", "group", "page_size", "query_len", "dtype"}};
  for (const SupportRow& row : rows) {
    if (!row.supported) continue;
    lines.push_back({row.device, row.op, row.method, fmt::format("{} {}", row.kernel, row.isa),
                     ranges(row.head_dims), ranges(row.groups), ranges(row.page_sizes),
                     ranges(row.query_lens), fmt::format("{}", fmt::join(row.dtypes, " "))});
  }
  std::array<size_t, kColumns> widths = {};
  for (const auto& line : lines) {
    for (size_t c = 0; c < kColumns; ++c) widths[c] = std::max(widths[c], line[c].size());
  }
  std::string text;
  for (const auto& line : lines) {
    for (size_t c = 0; c + 1 < kColumns; ++c) text += fmt::format("{:<{}}  ", line[c], widths[c]);
    text += line.back() + "\n";
  }
  for (const SupportRow& row : rows) {
    const std::string name = fmt::format("{} {} {}", row.device, row.op, row.method);
    text += row.supported
                ? fmt::format("{}: {}\n", name,
                              row.options.empty() ? "no soft_cap, sliding_window, learned_sinks"
                                                  : fmt::format("{}", fmt::join(row.options, ", ")))
                : fmt::format("{}: not supported: {}\n", name, row.reason);
  }
  return text;
}

std::vector<ShapeKernel> common_shapes(const DeviceInfo& device) {
  const Shape shapes[] = {
      {.num_q_heads = 9, .num_kv_heads = 3, .head_dim = 64},
      {.method = Method::kFfd, .num_q_heads = 9, .num_kv_heads = 3, .head_dim = 64},
      {},
      {.method = Method::kFfd},
      {.num_q_heads = 64, .num_kv_heads = 4, .head_dim = 256, .page_size = 64},
      {.op = Op::kMla, .num_q_heads = 16, .num_kv_heads = 1, .head_dim = 576, .page_size = 64},
  };
  std::vector<ShapeKernel> rows;
  for (const Shape& shape : shapes) {
    ShapeKernel row;
    row.shape = fmt::format("{} {} {}/{} heads, head_dim {}, page_size {}, {}", op_name(shape.op),
                            method_name(shape.method), shape.num_q_heads, shape.num_kv_heads,
                            shape.head_dim, shape.page_size, dtype_name(shape.dtype));
    const Result<KernelChoice> choice = select_kernel(describe(shape), device);
    if (choice.ok()) {
      row.kernel = choice->name;
      row.isa = choice->isa;
    } else {
      row.reason = choice.status().message();
    }
    rows.push_back(row);
  }
  return rows;
}

}  // namespace longdecode::tool
