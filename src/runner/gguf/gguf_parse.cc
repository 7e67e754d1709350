#include "runner/gguf/gguf_parse.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "base/errors.h"
#include "base/status_macros.h"
#include "runner/gguf/byte_reader.h"

namespace longdecode::runner {
namespace {

constexpr uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr uint64_t kDefaultAlignment = 32;
constexpr uint64_t kMaxAlignment = uint64_t{1} << 30;
constexpr int32_t kMaxArrayDepth = 4;      // arrays of arrays are legal; nobody writes deeper ones
constexpr uint64_t kMaxNameBytes = 65535;  // of a key or tensor, as the format says
// The least bytes that an entry takes: name length, type and a one-byte value; name length, rank,
// one dimension, type and offset.
constexpr uint64_t kMinEntryBytes = 8 + 4 + 1;
constexpr uint64_t kMinTensorBytes = 8 + 4 + 8 + 4 + 8;

class Parser {
 public:
  explicit Parser(std::span<const uint8_t> bytes) : bytes_(bytes), reader_(bytes) {}

  Result<GgufContents> parse() {
    uint64_t num_tensors = 0;
    uint64_t num_values = 0;
    LD_RETURN_IF_ERROR(parse_header(&num_tensors, &num_values));
    for (uint64_t i = 0; i < num_values; ++i) LD_RETURN_IF_ERROR(parse_entry(i));
    LD_RETURN_IF_ERROR(read_alignment());
    std::vector<uint64_t> offsets;
    for (uint64_t i = 0; i < num_tensors; ++i) {
      uint64_t offset = 0;
      LD_RETURN_IF_ERROR(parse_tensor(i, &offset));
      offsets.push_back(offset);
    }
    LD_RETURN_IF_ERROR(place_tensors(offsets));
    return std::move(contents_);
  }

 private:
  template <typename... Args>
  Status truncated(fmt::format_string<Args...> format, Args&&... args) const {
    return data_loss("{} at byte {}: the file ends at byte {}",
                     fmt::format(format, std::forward<Args>(args)...), reader_.position(),
                     bytes_.size());
  }

  Status parse_header(uint64_t* num_tensors, uint64_t* num_values) {
    uint32_t magic = 0;
    if (!reader_.read(&magic) || magic != kMagic) {
      return data_loss("not a GGUF file: it does not start with 'GGUF'");
    }
    if (!reader_.read(&contents_.version)) return truncated("version");
    if (contents_.version != 2 && contents_.version != 3) {
      const uint32_t v = contents_.version;
      const uint32_t swapped = (v >> 24) | (v >> 8 & 0xff00) | (v << 8 & 0xff0000) | v << 24;
      if (swapped == 2 || swapped == 3) return unsupported("the GGUF file is big-endian");
      return unsupported("GGUF version is {}; 2 and 3 are supported", v);
    }
    if (!reader_.read(num_tensors)) return truncated("tensor count");
    if (!reader_.read(num_values)) return truncated("metadata count");
    if (*num_values > reader_.remaining() / kMinEntryBytes) {
      return data_loss("metadata count is {}; the file has room for {}", *num_values,
                       reader_.remaining() / kMinEntryBytes);
    }
    if (*num_tensors > reader_.remaining() / kMinTensorBytes) {
      return data_loss("tensor count is {}; the file has room for {}", *num_tensors,
                       reader_.remaining() / kMinTensorBytes);
    }
    return Status();
  }

  Status parse_name(const char* what, uint64_t index, std::string_view* name) {
    if (!reader_.read_string(name)) return truncated("name of {} {}", what, index);
    if (name->empty() || name->size() > kMaxNameBytes) {
      return data_loss("name of {} {} has {} bytes; 1 to {} are allowed", what, index, name->size(),
                       kMaxNameBytes);
    }
    return Status();
  }

  Status parse_entry(uint64_t index) {
    std::string_view key;
    LD_RETURN_IF_ERROR(parse_name("metadata entry", index, &key));
    uint32_t type = 0;
    if (!reader_.read(&type)) return truncated("type of '{}'", printable(key));
    GgufValue value;
    value.type = static_cast<GgufType>(type);
    LD_RETURN_IF_ERROR(parse_value(key, value.type, 0, &value));
    if (!contents_.values.emplace(key, value).second) {
      return data_loss("key '{}' appears twice", printable(key));
    }
    contents_.keys.push_back(key);
    return Status();
  }

  // Moves past a value; for the outermost one, `value` receives what was found.
  Status parse_value(std::string_view key, GgufType type, int32_t depth, GgufValue* value) {
    const size_t start = reader_.position();
    if (type == GgufType::kArray) {
      LD_RETURN_IF_ERROR(parse_array(key, depth, value));
      return Status();
    }
    if (type == GgufType::kString) {
      std::string_view text;
      if (!reader_.read_string(&text)) return truncated("string of '{}'", printable(key));
    } else {
      LD_RETURN_IF_ERROR(parse_scalars(key, type, 1));
    }
    value->bytes = bytes_.subspan(start, reader_.position() - start);
    return Status();
  }

  Status parse_scalars(std::string_view key, GgufType type, uint64_t count) {
    const size_t element_bytes = gguf_scalar_bytes(type);
    if (element_bytes == 0) {
      return data_loss("key '{}' has type {}; 0 to 12 are defined", printable(key),
                       static_cast<uint32_t>(type));
    }
    std::span<const uint8_t> elements;
    if (count > reader_.remaining() / element_bytes ||
        !reader_.read_bytes(count * element_bytes, &elements)) {
      return truncated("{} values of '{}'", count, printable(key));
    }
    if (type == GgufType::kBool) {
      const auto bad =
          std::find_if(elements.begin(), elements.end(), [](uint8_t byte) { return byte > 1; });
      if (bad != elements.end()) {
        return data_loss("bool of '{}' is {}; 0 or 1 is allowed", printable(key), *bad);
      }
    }
    return Status();
  }

  Status parse_array(std::string_view key, int32_t depth, GgufValue* value) {
    if (depth == kMaxArrayDepth) {
      return data_loss("arrays of '{}' are nested more than {} deep", printable(key),
                       kMaxArrayDepth);
    }
    uint32_t type = 0;
    if (!reader_.read(&type)) return truncated("array type of '{}'", printable(key));
    if (!reader_.read(&value->count)) return truncated("array length of '{}'", printable(key));
    value->element_type = static_cast<GgufType>(type);
    const size_t start = reader_.position();
    if (value->element_type == GgufType::kString || value->element_type == GgufType::kArray) {
      if (value->count > reader_.remaining() / 8) {  // a string takes 8 bytes or more, an array 12
        return truncated("{} elements of '{}'", value->count, printable(key));
      }
      GgufValue element;
      for (uint64_t i = 0; i < value->count; ++i) {
        LD_RETURN_IF_ERROR(parse_value(key, value->element_type, depth + 1, &element));
      }
    } else {
      LD_RETURN_IF_ERROR(parse_scalars(key, value->element_type, value->count));
    }
    value->bytes = bytes_.subspan(start, reader_.position() - start);
    return Status();
  }

  Status read_alignment() {
    const auto it = contents_.values.find("general.alignment");
    if (it == contents_.values.end()) return Status();
    uint32_t alignment = 0;
    ByteReader reader(it->second.bytes);
    if (it->second.type != GgufType::kUint32 || !reader.read(&alignment)) {
      return data_loss("general.alignment has type {}; uint32 is needed",
                       gguf_type_name(it->second.type));
    }
    // A power of two, 8 or more: what writers use and what keeps fp32 tensors aligned.
    if (alignment < 8 || alignment > kMaxAlignment || !std::has_single_bit(alignment)) {
      return data_loss("general.alignment is {}; a power of two from 8 to {} is allowed", alignment,
                       kMaxAlignment);
    }
    alignment_ = alignment;
    return Status();
  }

  Status parse_tensor(uint64_t index, uint64_t* offset) {
    GgufTensor tensor;
    LD_RETURN_IF_ERROR(parse_name("tensor", index, &tensor.name));
    const std::string name = printable(tensor.name);
    uint32_t rank = 0;
    if (!reader_.read(&rank)) return truncated("rank of tensor '{}'", name);
    if (rank < 1 || rank > 4) {
      return data_loss("tensor '{}' has rank {}; 1 to 4 are allowed", name, rank);
    }
    tensor.rank = static_cast<int32_t>(rank);
    uint64_t num_elements = 1;
    for (uint32_t i = 0; i < rank; ++i) {
      uint64_t size = 0;
      if (!reader_.read(&size)) return truncated("shape of tensor '{}'", name);
      constexpr uint64_t kMaxElements = std::numeric_limits<int64_t>::max();
      if (size == 0 || size > kMaxElements / num_elements) {
        return data_loss("tensor '{}' has dimension {} of size {}; 1 to {} is allowed", name, i,
                         size, kMaxElements / num_elements);
      }
      num_elements *= size;
      tensor.shape[i] = static_cast<int64_t>(size);
    }
    if (!reader_.read(&tensor.type_id)) return truncated("type of tensor '{}'", name);
    if (!reader_.read(offset)) return truncated("offset of tensor '{}'", name);
    if (!contents_.tensor_idx.emplace(tensor.name, contents_.tensors.size()).second) {
      return data_loss("tensor '{}' appears twice", name);
    }
    contents_.tensors.push_back(tensor);
    return Status();
  }

  // Offsets count from the aligned end of the tensor table.
  Status place_tensors(const std::vector<uint64_t>& offsets) {
    const uint64_t start = (reader_.position() + alignment_ - 1) / alignment_ * alignment_;
    const uint64_t data_bytes = start < bytes_.size() ? bytes_.size() - start : 0;
    for (size_t i = 0; i < offsets.size(); ++i) {
      GgufTensor& tensor = contents_.tensors[i];
      uint64_t num_bytes = 0;
      LD_RETURN_IF_ERROR(tensor_bytes(tensor, &num_bytes));
      const std::string name = printable(tensor.name);
      if (offsets[i] % alignment_ != 0) {
        return data_loss("tensor '{}' has offset {}; a multiple of {} is needed", name, offsets[i],
                         alignment_);
      }
      if (offsets[i] > data_bytes || num_bytes > data_bytes - offsets[i]) {
        return data_loss("tensor '{}' needs {} bytes at offset {}; the file has {} bytes of data",
                         name, num_bytes, offsets[i], data_bytes);
      }
      tensor.bytes = bytes_.subspan(start + offsets[i], num_bytes);
    }
    return check_overlap();
  }

  static Status tensor_bytes(const GgufTensor& tensor, uint64_t* num_bytes) {
    const std::string name = printable(tensor.name);
    const GgmlTypeInfo* type = find_ggml_type(tensor.type_id);
    if (type == nullptr || type->block_weights == 0) {
      return unsupported("tensor '{}' has the {} type {}; supported: {}", name,
                         type == nullptr ? "unknown" : "withdrawn",
                         type == nullptr ? fmt::format("id {}", tensor.type_id) : type->name,
                         supported_ggml_types());
    }
    if (tensor.shape[0] % type->block_weights != 0) {
      return data_loss("tensor '{}' has rows of {} weights; {} needs a multiple of {}", name,
                       tensor.shape[0], type->name, type->block_weights);
    }
    const uint64_t num_blocks = static_cast<uint64_t>(tensor.num_elements() / type->block_weights);
    const auto block_bytes = static_cast<uint64_t>(type->block_bytes);
    if (num_blocks > std::numeric_limits<uint64_t>::max() / block_bytes) {
      return data_loss("tensor '{}' with shape {} is larger than any file", name,
                       tensor.shape_string());
    }
    *num_bytes = num_blocks * block_bytes;
    return Status();
  }

  Status check_overlap() const {
    std::vector<const GgufTensor*> order;
    for (const GgufTensor& tensor : contents_.tensors) order.push_back(&tensor);
    std::sort(order.begin(), order.end(), [](const GgufTensor* a, const GgufTensor* b) {
      return a->bytes.data() < b->bytes.data();
    });
    for (size_t i = 1; i < order.size(); ++i) {
      if (order[i - 1]->bytes.data() + order[i - 1]->bytes.size() > order[i]->bytes.data()) {
        return data_loss("tensors '{}' and '{}' overlap", printable(order[i - 1]->name),
                         printable(order[i]->name));
      }
    }
    return Status();
  }

  std::span<const uint8_t> bytes_;
  ByteReader reader_;
  uint64_t alignment_ = kDefaultAlignment;
  GgufContents contents_;
};

}  // namespace

size_t gguf_scalar_bytes(GgufType type) {
  switch (type) {
    case GgufType::kUint8:
    case GgufType::kInt8:
    case GgufType::kBool:
      return 1;
    case GgufType::kUint16:
    case GgufType::kInt16:
      return 2;
    case GgufType::kUint32:
    case GgufType::kInt32:
    case GgufType::kFloat32:
      return 4;
    case GgufType::kUint64:
    case GgufType::kInt64:
    case GgufType::kFloat64:
      return 8;
    case GgufType::kString:
    case GgufType::kArray:
      break;
  }
  return 0;
}

Result<GgufContents> parse_gguf(std::span<const uint8_t> bytes) { return Parser(bytes).parse(); }

}  // namespace longdecode::runner
