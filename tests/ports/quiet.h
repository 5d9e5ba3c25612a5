/* A stricter count, of what a thread with a deadline must not do: system calls and locks, besides
 * allocations. Every system call of the process but those of own_call() traps into a handler that
 * counts it and then makes it; pthread_mutex_lock and its like are this program's. */
#include <dlfcn.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <ucontext.h>

static atomic_int may_lock = 1; /* the pool of threads does, and drawing random numbers */

/* The caller's own dlsym: a data pointer that is a function. */
#define NEXT(type, name)                                   \
    static type next;                                      \
    if (!next) *(void **)(&next) = dlsym(RTLD_NEXT, name); \
    if (!atomic_load(&may_lock)) count();

typedef int (*mutex_function)(pthread_mutex_t *);

int pthread_mutex_lock(pthread_mutex_t *mutex) {
    NEXT(mutex_function, "pthread_mutex_lock")
    return next(mutex);
}

int pthread_mutex_trylock(pthread_mutex_t *mutex) {
    NEXT(mutex_function, "pthread_mutex_trylock")
    return next(mutex);
}

#if defined(__x86_64__)

long own_call(long number, long a, long b, long c, long d, long e, long f);
extern const char after_own_call[];
__asm__(".text\n.globl own_call\n.type own_call, @function\nown_call:\n"
        "mov %rdi, %rax\nmov %rsi, %rdi\nmov %rdx, %rsi\nmov %rcx, %rdx\nmov %r8, %r10\nmov %r9, %r8\n"
        "mov 8(%rsp), %r9\nsyscall\n.globl after_own_call\nafter_own_call:\nret\n"
        ".section .note.GNU-stack,\"\",@progbits\n.text\n");

static void count_call(int signal, siginfo_t *info, void *context) {
    (void)signal;
    greg_t *r = ((ucontext_t *)context)->uc_mcontext.gregs;
    count();
    r[REG_RAX] = own_call(info->si_syscall, r[REG_RDI], r[REG_RSI], r[REG_RDX], r[REG_R10], r[REG_R8], r[REG_R9]);
}

/* From now on; 0 when the system lets us. */
static int count_system_calls(void) {
    const uint64_t own = (uint64_t)(uintptr_t)after_own_call;
    const unsigned pointer = offsetof(struct seccomp_data, instruction_pointer);
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_rt_sigreturn, 4, 0),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, pointer),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)own, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, pointer + 4),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)(own >> 32), 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
    };
    struct sock_fprog filter = {sizeof code / sizeof *code, code};
    struct sigaction action = {0};
    action.sa_sigaction = count_call;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    return sigaction(SIGSYS, &action, NULL) || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter);
}

#else

static int count_system_calls(void) { return 1; }

#endif
