#include "support.h"

#include <fmt/format.h>

#include <functional>

namespace longdecode::tool {
namespace {

constexpr int64_t kProbeKvLen = 65536;
constexpr int32_t kHeadDims[] = {64, 80, 96, 128, 256};
constexpr int32_t kPageSizes[] = {1, 16, 32, 64, 128};
constexpr DType kDTypes[] = {DType::kF32, DType::kF16, DType::kBF16};
constexpr int32_t kMaxGroup = 16;
constexpr int32_t kMlaHeads[] = {1, 8, 16, 32, 64, 128};

struct Shape {
  Op op = Op::kGqa;
  Method method = Method::kDense;
  int32_t num_q_heads = 32;
  int32_t num_kv_heads = 8;
  int32_t head_dim = 128;
  int32_t page_size = 128;
  DType dtype = DType::kBF16;
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
  if (shape.op == Op::kMla) desc.softmax_scale = 0.1f;  // MLA has no default
  return desc;
}

bool serves(const Shape& shape, const DeviceInfo& device) {
  return select_kernel(describe(shape), device).ok();
}

SupportRow make_row(Op op, Method method, const DeviceInfo& device) {
  SupportRow row;
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
    return serves(shape, device);
  };
  if (op == Op::kMla) {
    row.head_dims = {kMlaKeyDim};
    for (int32_t heads : kMlaHeads) {
      if (with([&](Shape& s) { s.num_q_heads = heads; })) row.groups.push_back(heads);
    }
  } else {
    for (int32_t dim : kHeadDims) {
      if (with([&](Shape& s) { s.head_dim = dim; })) row.head_dims.push_back(dim);
    }
    for (int32_t group = 1; group <= kMaxGroup; ++group) {
      if (with([&](Shape& s) { s.num_q_heads = group * s.num_kv_heads; })) {
        row.groups.push_back(group);
      }
    }
  }
  for (int32_t page_size : kPageSizes) {
    if (with([&](Shape& s) { s.page_size = page_size; })) row.page_sizes.push_back(page_size);
  }
  for (DType dtype : kDTypes) {
    if (with([&](Shape& s) { s.dtype = dtype; })) row.dtypes.push_back(dtype_name(dtype));
  }
  return row;
}

}  // namespace

const char* dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kF16:
      return "f16";
    case DType::kBF16:
      return "bf16";
  }
  return "unknown";
}

std::vector<SupportRow> support_matrix(const DeviceInfo& device) {
  return {make_row(Op::kGqa, Method::kDense, device), make_row(Op::kGqa, Method::kFfd, device),
          make_row(Op::kMla, Method::kDense, device), make_row(Op::kMla, Method::kFfd, device)};
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
