#include "gemm/gemm.h"

#include "base/pool.h"
#include "base/types.h"

namespace obn::gemm {

size_t work_bytes(const Product&) { return 0; }

void run(const Product& p, size_t threads, std::byte*) {
  parallel(p.m, threads, [&](size_t i) { run_reference(p, i, i + 1); });
}

size_t work_bytes(const Product& first, size_t) { return work_bytes(first); }

void run_batch(const Product& first, size_t count, size_t a_step, size_t b_step, size_t c_step, size_t threads,
               std::byte*) {
  parallel(count, threads, [&](size_t i) {
    Product p = first;
    p.a.data = static_cast<const std::byte*>(first.a.data) + i * a_step * bytes_of(first.a.type);
    p.b.data = static_cast<const std::byte*>(first.b.data) + i * b_step * bytes_of(first.b.type);
    p.c = first.c + i * c_step;
    run_reference(p, 0, p.m);
  });
}

}  // namespace obn::gemm
