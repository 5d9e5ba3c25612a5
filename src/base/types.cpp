#include "base/types.h"

namespace obn {
namespace {

struct Named {
  BNNSDataType type;
  const char* name;
};

constexpr Named kTypes[] = {
    {BNNSDataTypeFloat32, "float32"},   {BNNSDataTypeFloat16, "float16"},   {BNNSDataTypeBFloat16, "bfloat16"},
    {BNNSDataTypeInt1, "int1"},         {BNNSDataTypeInt2, "int2"},         {BNNSDataTypeInt4, "int4"},
    {BNNSDataTypeInt8, "int8"},         {BNNSDataTypeInt16, "int16"},       {BNNSDataTypeInt32, "int32"},
    {BNNSDataTypeInt64, "int64"},       {BNNSDataTypeUInt1, "uint1"},       {BNNSDataTypeUInt2, "uint2"},
    {BNNSDataTypeUInt3, "uint3"},       {BNNSDataTypeUInt4, "uint4"},       {BNNSDataTypeUInt6, "uint6"},
    {BNNSDataTypeUInt8, "uint8"},       {BNNSDataTypeUInt16, "uint16"},     {BNNSDataTypeUInt32, "uint32"},
    {BNNSDataTypeUInt64, "uint64"},     {BNNSDataTypeIndexed1, "indexed1"}, {BNNSDataTypeIndexed2, "indexed2"},
    {BNNSDataTypeIndexed4, "indexed4"}, {BNNSDataTypeIndexed8, "indexed8"}, {BNNSDataTypeBoolean, "bool"},
};

}  // namespace

const char* name_of(BNNSDataType type) {
  for (const Named& entry : kTypes)
    if (entry.type == type) return entry.name;
  return "unknown";
}

bool is_known(BNNSDataType type) {
  for (const Named& entry : kTypes)
    if (entry.type == type) return true;
  return false;
}

}  // namespace obn
