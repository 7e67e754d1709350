// JSON that others wrote: read with limits, so that none of it is silently another value.
#ifndef LONGDECODE_TOOLS_JSON_INPUT_H_
#define LONGDECODE_TOOLS_JSON_INPUT_H_

#include <cstdint>
#include <iosfwd>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "longdecode/status.h"

namespace longdecode::tool {

// With numbers wider than any that is used, so that what does not fit those is seen.
using InputJson =
    nlohmann::basic_json<std::map, std::vector, std::string, bool, int64_t, uint64_t, long double>;

// kInvalidArgument for what is no JSON, nested too deep, or has a key twice in an object; the
// message is the end of a sentence: "is not JSON: ...".
Result<InputJson> parse_json(std::istream& text);
Result<InputJson> parse_json(std::span<const uint8_t> text);

}  // namespace longdecode::tool

#endif  // LONGDECODE_TOOLS_JSON_INPUT_H_
