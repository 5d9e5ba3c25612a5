// Failures seen from C++: what comes back, and where the reason is found.
#include <Accelerate/Accelerate.h>
#include <openbnns/openbnns.h>

#include <cstdio>
#include <cstring>
#include <thread>

int heard = 0;

void hear(const char* message, void* user) {
  heard += std::strlen(message) > 0;
  *static_cast<int*>(user) += 1;
}

int main() {
  std::printf("quiet %d\n", std::strlen(obn_last_error()) == 0);

  int calls = 0;
  obn_set_log_callback(hear, &calls);
  BNNSLayerParametersPooling pooling{};
  std::printf("created %d\n", BNNSFilterCreateLayerPooling(&pooling, nullptr) != nullptr);
  std::printf("reason %d\n", std::strlen(obn_last_error()) > 0);
  std::printf("heard %d %d\n", heard > 0, calls == heard);
  obn_set_log_callback(nullptr, nullptr);

  std::thread([] { std::printf("other thread %d\n", std::strlen(obn_last_error()) == 0); }).join();
  obn_clear_error();
  std::printf("cleared %d\n", std::strlen(obn_last_error()) == 0);

  float x[4] = {};
  std::printf("no filter %d\n", BNNSFilterApply(nullptr, x, x));
  BNNSFilterDestroy(nullptr);
  std::printf("known %d, unknown %d\n", obn_is_implemented("BNNSFilterApply"), obn_is_implemented("BNNSFly"));
  return 0;
}
