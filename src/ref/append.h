// append_kv token by token, without any shortcut.
#ifndef LONGDECODE_REF_APPEND_H_
#define LONGDECODE_REF_APPEND_H_

#include "longdecode/kv_cache.h"

namespace longdecode::ref {

void append(const AppendArgs& args);

}  // namespace longdecode::ref

#endif  // LONGDECODE_REF_APPEND_H_
