// What this build serves on a device, found by asking select_kernel, never written down twice.
#ifndef LONGDECODE_TOOLS_SUPPORT_H_
#define LONGDECODE_TOOLS_SUPPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "longdecode/attention.h"
#include "longdecode/types.h"

namespace longdecode::tool {

// One row of the support matrix: an operation and a method on a device.
struct SupportRow {
  std::string device;  // "cpu", "cuda"
  std::string op;      // "gqa", "mla"
  std::string method;  // "dense", "ffd"
  bool supported = false;
  std::string reason;  // why not
  std::string kernel;
  std::string isa;
  std::vector<int32_t> head_dims;  // MLA: the width of the latent row
  std::vector<int32_t> page_sizes;
  std::vector<std::string> dtypes;   // of K and V
  std::vector<int32_t> groups;       // query heads per kv head (MLA: query heads)
  std::vector<int32_t> query_lens;   // new tokens of a sequence
  std::vector<std::string> options;  // of soft_cap, sliding_window, learned_sinks
};

// Every operation and method of the library on `device`. A column holds every value of its range
// that is supported with the common values of the other columns.
std::vector<SupportRow> support_matrix(const DeviceInfo& device);

// The rows as a table for people, "64 80 96-98" for lists.
std::string support_table(const std::vector<SupportRow>& rows);

// What select_kernel gives for a few shapes that models have.
struct ShapeKernel {
  std::string shape;   // "gqa ffd 32/8 heads, head_dim 128, page_size 128"
  std::string kernel;  // "cpu/gqa_decode", or empty
  std::string isa;
  std::string reason;  // why there is none
};
std::vector<ShapeKernel> common_shapes(const DeviceInfo& device);

}  // namespace longdecode::tool

#endif  // LONGDECODE_TOOLS_SUPPORT_H_
