import { defineConfig } from 'vitest/config';

// One environment for all files: making one takes longer than the tests of a file, which leave nothing behind.
export default defineConfig({
  test: {
    environment: 'happy-dom',
    include: ['tests/**/*.test.ts'],
    pool: 'threads',
    isolate: false,
    maxWorkers: 1,
    testTimeout: 120_000
  }
});
