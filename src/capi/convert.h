// C structs to C++ ones and back. Every function checks pointers and struct sizes; what the values
// may be is checked by the C++ API.
#ifndef LONGDECODE_CAPI_CONVERT_H_
#define LONGDECODE_CAPI_CONVERT_H_

#include "longdecode/attention.h"
#include "longdecode/c_api.h"
#include "longdecode/kv_cache.h"
#include "longdecode/status.h"

namespace longdecode::capi {

Result<TensorView> to_tensor(const char* name, const ld_tensor* from);
Result<TensorView> to_optional_tensor(const char* name, const ld_tensor* from);  // NULL: empty
Result<DeviceInfo> to_device(const ld_device_info* from);
Result<KvFormat> to_format(const char* name, const ld_kv_format* from);
Result<DecodeDesc> to_decode_desc(const ld_decode_desc* from);
Result<KvLayerView> to_layer(const ld_kv_layer* from);
Result<BatchView> to_batch(const ld_batch* from);
Result<DecodeArgs> to_decode_args(const ld_decode_args* from);
Result<AppendArgs> to_append_args(const ld_append_args* from);
Result<MergeArgs> to_merge_args(const ld_merge_args* from);
Result<KvCacheDesc> to_cache_desc(const ld_cache_desc* from);

ld_tensor from_tensor(const TensorView& from);
ld_device_info from_device(const DeviceInfo& from);
ld_kv_format from_format(const KvFormat& from);
ld_kernel_choice from_choice(const KernelChoice& from);
ld_batch from_batch(const BatchView& from);

}  // namespace longdecode::capi

#endif  // LONGDECODE_CAPI_CONVERT_H_
