// Checks of everything a caller hands over, before a backend sees it. The message names the
// argument, its value and what is allowed.
#ifndef LONGDECODE_OPS_VALIDATE_H_
#define LONGDECODE_OPS_VALIDATE_H_

#include <limits>

#include "base/backend.h"
#include "longdecode/attention.h"
#include "longdecode/kv_cache.h"
#include "longdecode/status.h"

namespace longdecode {

// Where lengths, page ids and slots can be read: on the host they are checked too.
enum class LengthAccess { kHost, kDeviceOnly };

inline constexpr int64_t kMaxKvLen = std::numeric_limits<int32_t>::max();  // lengths are int32

Status validate(const DeviceInfo& device);
Status validate(const DecodeDesc& desc);
// desc has passed validation. args.batch.batch may be 0; nothing else is looked at then.
Status validate(const DecodeArgs& args, const DecodeDesc& desc, LengthAccess access);
Status validate(const AppendArgs& args, LengthAccess access);
Status validate(const PrefillArgs& args, LengthAccess access);
Status validate(const MergeArgs& args);

// The softmax scale that 0 stands for.
float resolved_softmax_scale(const DecodeDesc& desc);

}  // namespace longdecode

#endif  // LONGDECODE_OPS_VALIDATE_H_
