// The session of a command, on the device that --device asks for.
#ifndef LONGDECODE_TOOLS_OPEN_SESSION_H_
#define LONGDECODE_TOOLS_OPEN_SESSION_H_

#include <cstdint>
#include <memory>

#include "longdecode/status.h"
#include "longdecode/types.h"
#include "runner/model/session.h"
#include "session_options.h"

namespace longdecode::tool {

// --device auto: the GPU. Where there is none, or it has no kernels or no room for this model, the
// CPU, and one note says why (not in a build without the CUDA backend: it never had the choice).
Result<runner::Session> open_session(std::shared_ptr<const runner::Model> model,
                                     const SessionFlags& flags, Method method, int64_t context_len,
                                     bool progress);

}  // namespace longdecode::tool

#endif  // LONGDECODE_TOOLS_OPEN_SESSION_H_
