// The worker that runs the model, and questions to it.

const source = document.getElementById("workerSource").textContent;
const worker = new Worker(URL.createObjectURL(new Blob([source], { type: "text/javascript" })));
const pending = new Map();
let nextId = 0;

worker.onmessage = ({ data }) => {
  const [resolve, reject] = pending.get(data.id);
  pending.delete(data.id);
  if (data.error) reject(new Error(data.error));
  else resolve(data);
};

// Sends a message to the worker; its answer is the promise's value.
export function ask(type, data = {}) {
  const id = nextId++;
  worker.postMessage({ id, type, ...data });
  return new Promise((resolve, reject) => pending.set(id, [resolve, reject]));
}
