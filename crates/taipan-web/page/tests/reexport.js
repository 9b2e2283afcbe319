// Served as the package's index.js, so that the fake keeps its own address and imports.
export * from "/tests/fake.js";
