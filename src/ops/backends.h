// The backends of this build.
#ifndef LONGDECODE_OPS_BACKENDS_H_
#define LONGDECODE_OPS_BACKENDS_H_

#include "base/backend.h"

namespace longdecode {

// kUnavailable, naming the device type and what the build has, when there is no such backend.
Result<const Backend*> find_backend(DeviceType type);

// Validates and runs PrefillArgs on the device (an internal operation of the runner).
Status prefill_attention(const PrefillArgs& args, const DeviceInfo& device, StreamHandle stream);

}  // namespace longdecode

#endif  // LONGDECODE_OPS_BACKENDS_H_
