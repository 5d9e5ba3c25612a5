// How exactly products of float32 matrices are computed.
#pragma once

namespace obn {

// What a product is allowed to do, never what it must do: a machine without a faster way computes as `highest`.
enum class Precision {
  highest,  // float32 operands, float32 sums
  high,     // operands may be split in bfloat16 pieces; at least 16 bits of every product are kept
  medium,   // operands may be rounded to bfloat16; sums are float32
};

Precision precision();             // the library's setting, `highest` until it is changed
Precision precision_of(int own);   // that of a layer: its own setting, or the library's for -1
int check_precision(int own);      // 0, or -1 with a sentence: expected -1, 0, 1 or 2

}  // namespace obn
