// Every thread adds its number to *counter inside a lock, lanes of one warp included: the holder must get on while its
// neighbours spin.

extern "C" __global__ void spin_lock(unsigned *lock, volatile unsigned *counter, volatile unsigned *sum) {
    unsigned number = blockIdx.x * blockDim.x + threadIdx.x + 1;
    bool done = false;
    while (!done) {
        if (atomicCAS(lock, 0u, 1u) == 0u) {
            __threadfence();  // nothing of the section is seen before the lock is held
            *counter = *counter + 1;
            *sum = *sum + number;
            __threadfence();  // the section is seen before the lock is free
            atomicExch(lock, 0u);
            done = true;
        }
    }
}

// The holder leaves the loop from within: the form that a machine with one program counter a warp can't run.
extern "C" __global__ void spin_lock_inner(unsigned *lock, volatile unsigned *counter, volatile unsigned *sum) {
    unsigned number = blockIdx.x * blockDim.x + threadIdx.x + 1;
    while (atomicCAS(lock, 0u, 1u) != 0u) {
    }
    __threadfence();  // nothing of the section is seen before the lock is held
    *counter = *counter + 1;
    *sum = *sum + number;
    __threadfence();  // the section is seen before the lock is free
    atomicExch(lock, 0u);
}
