// Appending the new tokens of a step to one layer of a KV cache.
#ifndef LONGDECODE_CPU_APPEND_H_
#define LONGDECODE_CPU_APPEND_H_

#include "longdecode/kv_cache.h"
#include "longdecode/types.h"

namespace longdecode::cpu {

// args satisfy the public contract (AppendArgs); lengths and page ids are valid. Keys are rounded
// to format.dtype before anything else, so that the quantised bits of a page do not depend on how
// its tokens were split over calls. Writes only the new tokens' rows, and the planes of the pages
// that become due.
void append(const AppendArgs& args, const DeviceInfo& device);

}  // namespace longdecode::cpu

#endif  // LONGDECODE_CPU_APPEND_H_
