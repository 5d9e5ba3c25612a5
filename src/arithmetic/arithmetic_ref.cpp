// The obvious formulas, in double precision (docs/interface/arithmetic.md 5). Letters as in arithmetic.h.
#include <cmath>
#include <cstddef>

#include "arithmetic/arithmetic.h"

namespace obn::arithmetic::ref {

namespace {

constexpr double kLn2 = 0.6931471805599453;
constexpr double kTwoOverRootPi = 1.1283791670955126;

double sign(double v) { return v > 0.0 ? 1.0 : (v < 0.0 ? -1.0 : v * 0.0); }

// NaN wins.
bool takes_a(Function function, double a, double b) {
  return std::isnan(a) || (function == BNNSArithmeticMinimum ? a < b : a > b);
}

}  // namespace

double forward(Function function, double a, double b, double c) {
  switch (function) {
    case BNNSArithmeticAdd: return a + b;
    case BNNSArithmeticSubtract: return a - b;
    case BNNSArithmeticMultiply: return a * b;
    case BNNSArithmeticDivide: return a / b;
    case BNNSArithmeticSquareRoot: return std::sqrt(a);
    case BNNSArithmeticReciprocalSquareRoot: return 1.0 / std::sqrt(a);
    case BNNSArithmeticCeil: return std::ceil(a);
    case BNNSArithmeticFloor: return std::floor(a);
    case BNNSArithmeticRound: return std::nearbyint(a);
    case BNNSArithmeticSin: return std::sin(a);
    case BNNSArithmeticCos: return std::cos(a);
    case BNNSArithmeticTan: return std::tan(a);
    case BNNSArithmeticAsin: return std::asin(a);
    case BNNSArithmeticAcos: return std::acos(a);
    case BNNSArithmeticAtan: return std::atan(a);
    case BNNSArithmeticSinh: return std::sinh(a);
    case BNNSArithmeticCosh: return std::cosh(a);
    case BNNSArithmeticTanh: return std::tanh(a);
    case BNNSArithmeticAsinh: return std::asinh(a);
    case BNNSArithmeticAcosh: return a < 1.0 ? std::nan("") : std::acosh(a);  // a C library may give 0 there
    case BNNSArithmeticAtanh: return std::atanh(a);
    case BNNSArithmeticPow: return std::pow(a, b);
    case BNNSArithmeticExp: return std::exp(a);
    case BNNSArithmeticExp2: return std::exp2(a);
    case BNNSArithmeticLog: return std::log(a);
    case BNNSArithmeticLog2: return std::log2(a);
    case BNNSArithmeticMultiplyNoNaN: return b == 0.0 ? 0.0 : a * b;
    case BNNSArithmeticDivideNoNaN: return b == 0.0 ? 0.0 : a / b;
    case BNNSArithmeticMultiplyAdd: return a * b + c;
    case BNNSArithmeticMinimum:
    case BNNSArithmeticMaximum: return takes_a(function, a, b) ? a : b;
    case BNNSArithmeticSelect: return a != 0.0 ? b : c;
    case BNNSArithmeticAbs: return std::fabs(a);
    case BNNSArithmeticSign: return sign(a);
    case BNNSArithmeticNegate: return -a;
    case BNNSArithmeticReciprocal: return 1.0 / a;
    case BNNSArithmeticSquare: return a * a;
    case BNNSArithmeticFloorDivide: return std::floor(a / b);
    case BNNSArithmeticTruncDivide: return std::trunc(a / b);
    case BNNSArithmeticTruncRemainder: return std::fmod(a, b);
    case BNNSArithmeticErf: return std::erf(a);
  }
  return std::nan("");
}

double gradient(Function function, size_t k, double a, double b, double c, double dz) {
  const double y = forward(function, a, b, c);
  switch (function) {
    case BNNSArithmeticAdd: return dz;
    case BNNSArithmeticSubtract: return k == 0 ? dz : -dz;
    case BNNSArithmeticMultiply: return dz * (k == 0 ? b : a);
    case BNNSArithmeticDivide: return k == 0 ? dz / b : -dz * a / (b * b);
    case BNNSArithmeticSquareRoot: return dz / (2.0 * y);
    case BNNSArithmeticReciprocalSquareRoot: return -0.5 * dz * y * y * y;
    case BNNSArithmeticSin: return dz * std::cos(a);
    case BNNSArithmeticCos: return -dz * std::sin(a);
    case BNNSArithmeticTan: return dz * (1.0 + y * y);
    case BNNSArithmeticAsin: return dz / std::sqrt(1.0 - a * a);
    case BNNSArithmeticAcos: return -dz / std::sqrt(1.0 - a * a);
    case BNNSArithmeticAtan: return dz / (1.0 + a * a);
    case BNNSArithmeticSinh: return dz * std::cosh(a);
    case BNNSArithmeticCosh: return dz * std::sinh(a);
    case BNNSArithmeticTanh: return dz / (std::cosh(a) * std::cosh(a));  // 1 - y², without the difference
    case BNNSArithmeticAsinh: return dz / std::sqrt(a * a + 1.0);
    case BNNSArithmeticAcosh: return dz / std::sqrt(a * a - 1.0);
    case BNNSArithmeticAtanh: return dz / (1.0 - a * a);
    case BNNSArithmeticPow:
      if (k == 0) return b == 0.0 ? 0.0 : dz * b * std::pow(a, b - 1.0);
      return a == 0.0 && b >= 0.0 ? 0.0 : dz * y * std::log(a);
    case BNNSArithmeticExp: return dz * y;
    case BNNSArithmeticExp2: return dz * y * kLn2;
    case BNNSArithmeticLog: return dz / a;
    case BNNSArithmeticLog2: return dz / (a * kLn2);
    case BNNSArithmeticMultiplyNoNaN:
      return k == 0 ? (b == 0.0 ? 0.0 : dz * b) : (dz == 0.0 ? 0.0 : dz * a);
    case BNNSArithmeticDivideNoNaN: return b == 0.0 ? 0.0 : (k == 0 ? dz / b : -dz * a / (b * b));
    case BNNSArithmeticMultiplyAdd: return k == 2 ? dz : dz * (k == 0 ? b : a);
    case BNNSArithmeticMinimum:
    case BNNSArithmeticMaximum: return a == b ? 0.5 * dz : (takes_a(function, a, b) == (k == 0) ? dz : 0.0);
    case BNNSArithmeticSelect: return k == 0 ? 0.0 : ((a != 0.0) == (k == 1) ? dz : 0.0);
    case BNNSArithmeticAbs: return dz * sign(a);
    case BNNSArithmeticNegate: return -dz;
    case BNNSArithmeticReciprocal: return -dz * y * y;
    case BNNSArithmeticSquare: return 2.0 * a * dz;
    case BNNSArithmeticTruncRemainder: return k == 0 ? dz : -dz * std::trunc(a / b);
    case BNNSArithmeticErf: return dz * kTwoOverRootPi * std::exp(-a * a);
    case BNNSArithmeticCeil:
    case BNNSArithmeticFloor:
    case BNNSArithmeticRound:
    case BNNSArithmeticSign:
    case BNNSArithmeticFloorDivide:
    case BNNSArithmeticTruncDivide: return 0.0;
  }
  return std::nan("");
}

}  // namespace obn::arithmetic::ref
