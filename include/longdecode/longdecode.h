// Everything in one include.
#ifndef LONGDECODE_LONGDECODE_H_
#define LONGDECODE_LONGDECODE_H_

#include "longdecode/attention.h"
#include "longdecode/kv_cache.h"
#include "longdecode/kv_format.h"
#include "longdecode/status.h"
#include "longdecode/tensor.h"
#include "longdecode/types.h"
#include "longdecode/version.h"

#endif  // LONGDECODE_LONGDECODE_H_
