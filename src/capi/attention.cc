#include "longdecode/attention.h"

#include "capi/convert.h"
#include "capi/structs.h"

using namespace longdecode;
using namespace longdecode::capi;

struct ld_plan {
  DecodePlan plan;
};

ld_status_code ld_detect_device(int32_t type, int32_t device_idx, ld_device_info* info) {
  return guarded([&]() -> Status {
    LD_RETURN_IF_ERROR(check_output("info", info));
    LD_ASSIGN_OR_RETURN(const DeviceInfo device,
                        detect_device(static_cast<DeviceType>(type), device_idx));
    write_struct(from_device(device), info);
    return {};
  });
}

ld_status_code ld_kv_format_validate(const ld_kv_format* format) {
  return guarded([&]() -> Status {
    LD_ASSIGN_OR_RETURN(const KvFormat converted, to_format("format", format));
    return validate(converted);
  });
}

ld_status_code ld_kv_format_get_sizes(const ld_kv_format* format, ld_kv_format_sizes* sizes) {
  return guarded([&]() -> Status {
    LD_ASSIGN_OR_RETURN(const KvFormat converted, to_format("format", format));
    LD_RETURN_IF_ERROR(validate(converted));
    LD_RETURN_IF_ERROR(check_output("sizes", sizes));
    ld_kv_format_sizes result = ld_kv_format_sizes_default();
    result.padded_dim = converted.padded_dim();
    result.recent_ring_tokens = converted.recent_ring_tokens();
    result.chunk_bytes = converted.chunk_bytes();
    result.step_offset_bytes = converted.step_offset_bytes();
    result.zero_offset_bytes = converted.zero_offset_bytes();
    result.residual_bytes = converted.residual_bytes();
    result.bytes_per_token = converted.bytes_per_token();
    write_struct(result, sizes);
    return {};
  });
}

ld_status_code ld_kv_format_num_quantized_pages(const ld_kv_format* format, int64_t kv_len,
                                                int64_t* num_pages) {
  return guarded([&]() -> Status {
    LD_ASSIGN_OR_RETURN(const KvFormat converted, to_format("format", format));
    LD_RETURN_IF_ERROR(validate(converted));
    LD_RETURN_IF_ERROR(check_pointer("num_pages", num_pages));
    if (kv_len < 0) return invalid_argument("kv_len is {}; allowed: 0 or more", kv_len);
    *num_pages = converted.num_quantized_pages(kv_len);
    return {};
  });
}

ld_status_code ld_select_kernel(const ld_decode_desc* desc, const ld_device_info* device,
                                ld_kernel_choice* choice) {
  return guarded([&]() -> Status {
    LD_ASSIGN_OR_RETURN(const DecodeDesc cpp_desc, to_decode_desc(desc));
    LD_ASSIGN_OR_RETURN(const DeviceInfo cpp_device, to_device(device));
    LD_RETURN_IF_ERROR(check_output("choice", choice));
    LD_ASSIGN_OR_RETURN(const KernelChoice result, select_kernel(cpp_desc, cpp_device));
    write_struct(from_choice(result), choice);
    return {};
  });
}

ld_status_code ld_plan_create(const ld_decode_desc* desc, const ld_device_info* device,
                              ld_plan** plan) {
  return guarded([&]() -> Status {
    LD_RETURN_IF_ERROR(check_pointer("plan", plan));
    *plan = nullptr;
    LD_ASSIGN_OR_RETURN(const DecodeDesc cpp_desc, to_decode_desc(desc));
    LD_ASSIGN_OR_RETURN(const DeviceInfo cpp_device, to_device(device));
    LD_ASSIGN_OR_RETURN(DecodePlan created, DecodePlan::create(cpp_desc, cpp_device));
    *plan = new ld_plan{std::move(created)};
    return {};
  });
}

void ld_plan_destroy(ld_plan* plan) { delete plan; }

ld_status_code ld_plan_kernel(const ld_plan* plan, ld_kernel_choice* choice) {
  return guarded([&]() -> Status {
    LD_RETURN_IF_ERROR(check_pointer("plan", plan));
    LD_RETURN_IF_ERROR(check_output("choice", choice));
    write_struct(from_choice(plan->plan.kernel()), choice);
    return {};
  });
}

ld_status_code ld_plan_workspace_bytes(const ld_plan* plan, int64_t* num_bytes) {
  return guarded([&]() -> Status {
    LD_RETURN_IF_ERROR(check_pointer("plan", plan));
    LD_RETURN_IF_ERROR(check_pointer("num_bytes", num_bytes));
    *num_bytes = plan->plan.workspace_bytes();
    return {};
  });
}

ld_status_code ld_plan_init(ld_plan* plan, void* workspace, void* stream) {
  return guarded([&]() -> Status {
    LD_RETURN_IF_ERROR(check_pointer("plan", plan));
    return plan->plan.init(workspace, stream);
  });
}

ld_status_code ld_plan_run(ld_plan* plan, const ld_decode_args* args, void* stream) {
  return guarded([&]() -> Status {
    LD_RETURN_IF_ERROR(check_pointer("plan", plan));
    LD_ASSIGN_OR_RETURN(const DecodeArgs cpp_args, to_decode_args(args));
    return plan->plan.run(cpp_args, stream);
  });
}

ld_status_code ld_merge_partials(const ld_merge_args* args, const ld_device_info* device,
                                 void* stream) {
  return guarded([&]() -> Status {
    LD_ASSIGN_OR_RETURN(const MergeArgs cpp_args, to_merge_args(args));
    LD_ASSIGN_OR_RETURN(const DeviceInfo cpp_device, to_device(device));
    return merge_partials(cpp_args, cpp_device, stream);
  });
}
