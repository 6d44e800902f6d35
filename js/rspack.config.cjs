// Modules are numbered in their order. By default the number of the entry is a hash of this folder's absolute path, and
// the wheel would differ with the folder it is built in.
module.exports = { optimization: { moduleIds: 'natural' } };
