// JSON that others wrote: read with limits, so that none of it is silently another value.
#ifndef LONGDECODE_TOOLS_JSON_INPUT_H_
#define LONGDECODE_TOOLS_JSON_INPUT_H_

#include <cstdint>
#include <iosfwd>
#include <nlohmann/json.hpp>
#include <span>

#include "longdecode/status.h"

namespace longdecode::tool {

// kInvalidArgument for what is no JSON, nested too deep, or has a key twice in an object; the
// message is the end of a sentence: "is not JSON: ...".
Result<nlohmann::json> parse_json(std::istream& text);
Result<nlohmann::json> parse_json(std::span<const uint8_t> text);

}  // namespace longdecode::tool

#endif  // LONGDECODE_TOOLS_JSON_INPUT_H_
