// SPDX-License-Identifier: Apache-2.0

// What Node runs in a session: evaluates the sources that come on descriptor 3, one after another,
// in names that last. A message is its length (4 bytes, little-endian) and JSON. Evaluation is that
// of V8's own console ("REPL mode"): `const` may be declared anew, and `await` works outside
// functions. What is asked: {source, cwd, env}; javascript.py says what is answered.

'use strict';
(() => {
  const { writeSync } = require('node:fs');
  const { createRequire } = require('node:module');
  const { Socket } = require('node:net');
  const path = require('node:path');
  const { Writable } = require('node:stream');
  const { pathToFileURL } = require('node:url');
  const util = require('node:util');
  const inspector = require('node:inspector');
  const acorn = require('internal/deps/acorn/acorn/dist/acorn');

  // As they are before any code can replace them.
  const { stringify, parse } = JSON;
  const { entries, getPrototypeOf, is, prototype: OBJECT, values } = Object;
  const MOST_TEXT = 1 << 16; // characters of a message
  const MOST_SHOWN = 10000; // characters of a value that is no data
  const DEEPEST = 100; // values in one another
  const DATES = [-62135596800000, 253402300799999]; // milliseconds: those that Python has
  const IMPORT = '__hutch_import__';
  const TAKE = Symbol('take');
  const OWN = /^ +at .*(?:node:inspector|\[eval)/; // lines of a stack

  const PROGRAMS = process.env.HUTCH_NODE_PATH;
  process.execPath = process.env.HUTCH_NODE;
  process.argv = [process.execPath];
  delete process.env.HUTCH_NODE;
  delete process.env.HUTCH_NODE_PATH;
  const addPrograms = () => {
    if (!`:${process.env.PATH}:`.includes(`:${PROGRAMS}:`)) {
      process.env.PATH = `${process.env.PATH ?? ''}:${PROGRAMS}`;
    }
  };
  addPrograms();

  // ---- what is printed: at once, by descriptors that stay as the code's other processes have them

  class Output extends Writable {
    constructor(fd) {
      super({ decodeStrings: true });
      this.fd = fd;
    }
    _write(chunk, _, done) {
      for (let at = 0; at < chunk.length;) {
        try {
          at += writeSync(this.fd, chunk, at);
        } catch (error) {
          if (error.code !== 'EAGAIN') return done(error.code === 'EPIPE' ? null : error);
          Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1);
        }
      }
      done();
    }
    _destroy(_, done) {
      done();
    }
  }
  const outputs = { stdout: new Output(1), stderr: new Output(2) };
  for (const [name, output] of Object.entries(outputs)) {
    const get = () => output;
    Object.defineProperty(process, name, { configurable: true, enumerable: true, get });
  }
  globalThis.console = new console.Console(outputs.stdout, outputs.stderr);

  // ---- modules, from the directory where the code is

  let required;
  Object.defineProperty(globalThis, 'require', {
    configurable: true,
    get() {
      const here = process.cwd() + '/';
      if (required?.here !== here) required = { here, require: createRequire(here) };
      return required.require;
    },
    set(value) {
      Object.defineProperty(globalThis, 'require', { value, configurable: true, writable: true });
    },
  });
  const unplaced = new WeakSet(); // errors of what has no line
  // `names`: that are to be there, as where they are declared.
  const importing = async (name, options, names = []) => {
    const isPath = typeof name === 'string' && /^(?:\.{0,2}\/|\.{1,2}$)/.test(name);
    const found = await import(isPath ? pathToFileURL(path.resolve(name)).href : name, options);
    for (const one of names) {
      if (one in found) continue;
      const said = `The requested module '${name}' does not provide an export named '${one}'`;
      const error = new SyntaxError(said);
      unplaced.add(error);
      throw error;
    }
    return found;
  };
  Object.defineProperty(globalThis, IMPORT, { value: importing });
  for (const name of ['module', 'exports', '__filename', '__dirname']) delete globalThis[name];

  // V8's console has no `import`: it becomes a call of ours, on the line where it stands.
  function withImports(source) {
    if (!/\bimport\b/.test(source)) return source;
    let tree;
    for (const sourceType of ['module', 'script']) {
      try {
        const more = { allowAwaitOutsideFunction: true, allowHashBang: true };
        tree = acorn.Parser.parse(source, { ecmaVersion: 'latest', sourceType, ...more });
        break;
      } catch {
        continue; // V8 says what is wrong
      }
    }
    if (tree === undefined) return source;
    const edits = [];
    const waiting = [tree];
    while (waiting.length > 0) {
      const node = waiting.pop();
      if (node.type === 'ImportExpression') edits.push([node.start, node.start + 6, IMPORT]);
      if (node.type === 'ImportDeclaration') {
        edits.push([node.start, node.end, declared(source, node)]);
        continue;
      }
      for (const value of values(node)) {
        for (const one of Array.isArray(value) ? value : [value]) {
          if (one && typeof one.type === 'string') waiting.push(one);
        }
      }
    }
    edits.sort((a, b) => b[0] - a[0]);
    for (const [start, end, text] of edits) {
      source = source.slice(0, start) + text + source.slice(end);
    }
    return source;
  }

  function declared(source, node) {
    const given = (node.attributes ?? []).map(
      (one) => `${source.slice(one.key.start, one.key.end)}: ${one.value.raw}`);
    const options = given.length > 0 ? `{with: {${given.join(', ')}}}` : 'undefined';
    const names = [];
    const wanted = [];
    let whole = '';
    for (const one of node.specifiers) {
      const local = one.local.name;
      if (one.type === 'ImportNamespaceSpecifier') {
        whole = local;
        continue;
      }
      const isDefault = one.type === 'ImportDefaultSpecifier';
      names.push(`${isDefault ? 'default' : one.imported.raw ?? one.imported.name}: ${local}`);
      wanted.push(isDefault ? 'default' : one.imported.value ?? one.imported.name);
    }
    const module = `await ${IMPORT}(${node.source.raw}, ${options}, ${stringify(wanted)})`;
    const lines = '\n'.repeat(source.slice(node.start, node.end).split('\n').length - 1);
    if (whole && names.length > 0) {
      return `const ${whole} = ${module}, {${names.join(', ')}} = ${whole};${lines}`;
    }
    if (whole) return `const ${whole} = ${module};${lines}`;
    return (names.length > 0 ? `const {${names.join(', ')}} = ${module};` : `${module};`) + lines;
  }

  // ---- evaluation

  const session = new inspector.Session();
  session.connect();
  const post = (method, fields) =>
    new Promise((resolve, reject) => {
      session.post(method, fields, (error, reply) => (error ? reject(error) : resolve(reply)));
    });
  let taken;
  Object.defineProperty(globalThis, TAKE, { value: (value) => { taken = value; } });

  // The value itself of what the inspector tells of, in an array: it may be a promise.
  async function valueOf(told) {
    if (told.objectId === undefined && told.unserializableValue === undefined) return [told.value];
    const { result } = await post('Runtime.evaluate', { expression: 'globalThis', objectGroup: 'call' });
    await post('Runtime.callFunctionOn', {
      functionDeclaration:
        'function (value) { this[Object.getOwnPropertySymbols(this).find(' +
        "(one) => one.description === 'take')](value); }",
      objectId: result.objectId,
      arguments: [told.objectId === undefined
        ? { unserializableValue: told.unserializableValue } : { objectId: told.objectId }],
    });
    const value = taken;
    taken = undefined;
    return [value];
  }

  let number = 0;
  async function evaluated(source) {
    const name = `cell-${++number}.js`;
    const reply = await post('Runtime.evaluate', {
      expression: `${withImports(source)}\n//# sourceURL=${name}`,
      replMode: true,
      awaitPromise: true,
      objectGroup: 'call',
    });
    const [value] = await valueOf(reply.result);
    const details = reply.exceptionDetails;
    if (details !== undefined) {
      const told = failed(value, name, details.lineNumber + 1);
      if (value instanceof SyntaxError && !/^ +at /m.test(told.error[2]) && told.error[3]) {
        told.error[2] = where(source, name, details) + told.error[2];
      }
      return told;
    }
    if (!util.types.isPromise(value)) return done(value);
    try {
      return done(await value);
    } catch (error) {
      return failed(error, name);
    }
  }

  // The place of what cannot be parsed, as Node shows it.
  function where(source, name, { lineNumber, columnNumber }) {
    const line = source.split('\n')[lineNumber] ?? '';
    if (line.length > 200) return `${name}:${lineNumber + 1}\n`;
    return `${name}:${lineNumber + 1}\n${line}\n${' '.repeat(columnNumber)}^\n`;
  }

  function done(value) {
    const data = dataOf(value, 0, []);
    if (data !== undefined) return { value: data };
    return { shown: withoutOwn(util.inspect(value)).slice(0, MOST_SHOWN) };
  }

  // `line`: of a SyntaxError.
  function failed(error, name, line) {
    if (!util.types.isNativeError(error) && !(error instanceof Error)) {
      return { error: ['Error', util.inspect(error).slice(0, MOST_SHOWN), '', null] };
    }
    const stack = withoutOwn(String(error.stack ?? ''));
    const found = new RegExp(`${name.replace('.', '\\.')}:(\\d+)`).exec(stack);
    const parsed = error instanceof SyntaxError && !unplaced.has(error);
    const at = found !== null ? Number(found[1]) : parsed ? line : null;
    let shown = stack;
    try {
      shown = withoutOwn(util.inspect(error)); // with causes and fields
    } catch {
      // what it says of itself fails
    }
    const [kind, message] = [error.name, error.message].map((one) => String(one).slice(0, MOST_TEXT));
    return { error: [kind, message, shown.slice(0, MOST_SHOWN), at ?? null] };
  }

  // Of each stack in the text, the lines from the first of ours on are left out.
  function withoutOwn(text) {
    const kept = [];
    let leaves = false;
    for (const line of text.split('\n')) {
      const isFrame = /^ +(?:at |\.\.\. \d+ lines matching )/.test(line);
      leaves = isFrame && (leaves || OWN.test(line));
      if (!leaves) kept.push(line);
      else if (line.endsWith(' {')) kept[kept.length - 1] += ' {'; // the fields follow
    }
    return kept.join('\n');
  }

  // As JSON: what JSON has no word for is [kind, …]. undefined: it is no data.
  function dataOf(value, depth, above) {
    switch (typeof value) {
      case 'undefined': return null;
      case 'boolean': case 'string': return value;
      case 'bigint': return ['int', value < 0n ? `-${(-value).toString(16)}` : value.toString(16)];
      case 'number':
        if (Number.isFinite(value) && !is(value, -0)) return value;
        return ['float', is(value, -0) ? '-0' : String(value)];
      case 'object': break;
      default: return undefined;
    }
    if (value === null) return null;
    if (depth >= DEEPEST || above.includes(value) || util.types.isProxy(value)) return undefined;
    if (util.types.isDate(value)) {
      const time = Date.prototype.getTime.call(value);
      return time < DATES[0] || time > DATES[1] ? undefined : ['date', time];
    }
    if (util.types.isAnyArrayBuffer(value)) return ['bytes', Buffer.from(value).toString('base64')];
    if (util.types.isUint8Array(value)) return ['bytes', Buffer.from(value).toString('base64')];
    above.push(value);
    try {
      return partsOf(value, depth + 1, above);
    } finally {
      above.pop();
    }
  }

  function partsOf(value, depth, above) {
    const all = (values) => {
      const found = [];
      for (const one of values) {
        const data = dataOf(one, depth, above);
        if (data === undefined) return undefined;
        found.push(data);
      }
      return found;
    };
    const of = (kind, values) => {
      const found = all(values);
      return found && [kind, found];
    };
    if (Array.isArray(value) || (ArrayBuffer.isView(value) && !util.types.isDataView(value))) {
      return of('list', value);
    }
    if (util.types.isSet(value)) return of('set', value);
    if (util.types.isMap(value)) return of('dict', [...value].flat());
    const prototype = getPrototypeOf(value);
    if (prototype !== null && prototype !== OBJECT) return undefined;
    return of('dict', entries(value).flat(1));
  }

  // ---- the other side

  const socket = new Socket({ fd: 3, readable: true, writable: true });
  const say = (answer) => {
    const text = Buffer.from(stringify(answer));
    const size = Buffer.alloc(4);
    size.writeUInt32LE(text.length);
    socket.write(Buffer.concat([size, text]));
  };

  async function answer({ source, cwd, env }) {
    let said;
    try {
      if (cwd !== process.cwd()) process.chdir(cwd);
      for (const [name, value] of entries(env)) {
        if (value === null) delete process.env[name];
        else process.env[name] = value;
      }
      addPrograms();
      said = await evaluated(source);
    } catch (error) {
      said = { error: ['Error', String(error?.message ?? error), '', null] };
    }
    await post('Runtime.releaseObjectGroup', { objectGroup: 'call' });
    let here = null;
    try {
      here = process.cwd();
    } catch {
      // it was deleted
    }
    try {
      say({ ...said, cwd: here });
    } catch (error) {
      say({ error: ['RangeError', String(error.message), '', null], cwd: here });
    }
  }

  let waiting = Buffer.alloc(0);
  let parts = [];
  socket.on('data', (part) => {
    parts.push(part);
    const held = waiting.length + parts.reduce((sum, one) => sum + one.length, 0);
    if (waiting.length < 4 || held >= 4 + waiting.readUInt32LE(0)) {
      waiting = Buffer.concat([waiting, ...parts]);
      parts = [];
    }
    if (waiting.length < 4 || waiting.length < 4 + waiting.readUInt32LE(0)) return;
    const message = parse(waiting.subarray(4).toString());
    waiting = Buffer.alloc(0);
    answer(message);
  });
  socket.on('end', () => process.exit());

  // What fails outside of any evaluation ends nothing, and is told.
  const tell = (error) => {
    console.error(error instanceof Error ? error : new Error(util.inspect(error)));
  };
  process.on('uncaughtException', tell);
  process.on('unhandledRejection', tell);
})();
