// Runs a small model for `--model local/NAME`: a line of JSON in, lines of JSON out, until its input ends.
//
//   node local_runner.mjs RUNNER_FOLDER WEIGHTS CONTEXT
//
// It says {"ready": true} once the model is loaded. A line {"prompt", "max_tokens", "stop", "temperature",
// "seed"} begins a completion, of which each piece is {"text"} and the end {"end": "stop" | "length",
// "input", "output"}, both in tokens; {"cancel": true} ends it early. One completion at a time.
import path from "node:path";
import readline from "node:readline";
import { pathToFileURL } from "node:url";

const [folder, weights, context] = process.argv.slice(2);
const CONTEXT = Number(context);

const say = (value) => process.stdout.write(JSON.stringify(value) + "\n");
const entry = path.join(folder, "node_modules", "node-llama-cpp", "dist", "index.js");
const { getLlama, LlamaCompletion, LlamaLogLevel } = await import(pathToFileURL(entry).href);

const llama = await getLlama({
    gpu: false,
    build: "never",
    skipDownload: true,
    maxThreads: 1,
    progressLogs: false,
    logLevel: LlamaLogLevel.error,
    logger: (level, message) => process.stderr.write(`${level}: ${message}\n`),
});
const model = await llama.loadModel({ modelPath: weights });
const sequence = (await model.createContext({ contextSize: CONTEXT, threads: 1 })).getSequence();
const completion = new LlamaCompletion({ contextSequence: sequence });

let current = null;

// What does not fit is left out at its beginning: the end says what is to be done next.
function fitting(prompt, room) {
    const tokens = model.tokenize(prompt, true);
    return tokens.length > room ? tokens.slice(tokens.length - room) : tokens;
}

async function complete(asked) {
    const left = new AbortController();
    current = left;
    const longest = Math.min(asked.max_tokens, CONTEXT / 2);
    const input = fitting(asked.prompt, CONTEXT - longest - 8);
    let output = 0;
    const { metadata } = await completion.generateCompletionWithMeta(input, {
        maxTokens: longest,
        temperature: asked.temperature,
        seed: asked.seed,
        customStopTriggers: asked.stop,
        signal: left.signal,
        stopOnAbortSignal: true,
        onTextChunk: (text) => say({ text }),
        onToken: (tokens) => { output += tokens.length; },
    });
    current = null;
    say({ end: metadata.stopReason === "maxTokens" ? "length" : "stop", input: input.length, output });
}

say({ ready: true });
let queue = Promise.resolve();
for await (const line of readline.createInterface({ input: process.stdin })) {
    const asked = JSON.parse(line);
    if (asked.cancel) current?.abort();
    else queue = queue.then(() => complete(asked)).catch((fault) => {
        process.stderr.write(`${fault?.stack ?? fault}\n`);
        process.exit(1);
    });
}
process.exit(0);
