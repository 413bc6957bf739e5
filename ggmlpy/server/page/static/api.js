// Requests to the server: JSON, and streams of server-sent events, with the API key.

const KEY = "ggmlpy.key";

/** An answer that is an error: `status`, and the message of OpenAI's error object. */
export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

let asking = null; // the promise of a key, while the dialog is open

/** A key from the person at the page: all requests that lack one share the dialog. */
function askForKey() {
  asking ??= new Promise((resolve) => {
    const dialog = document.getElementById("key-dialog");
    const field = document.getElementById("key");
    field.value = "";
    dialog.addEventListener("close", () => {
      asking = null;
      if (field.value.trim()) sessionStorage.setItem(KEY, field.value.trim());
      resolve(Boolean(field.value.trim()));
    }, { once: true });
    dialog.showModal();
  });
  return asking;
}

/** The response to a request. Raises ApiError for a status that is none of success. */
export async function ask(path, { body, signal } = {}) {
  for (;;) {
    const used = sessionStorage.getItem(KEY);
    const headers = used ? { Authorization: `Bearer ${used}` } : {};
    if (body) headers["Content-Type"] = "application/json";
    const response = await fetch(path, {
      method: body ? "POST" : "GET",
      headers,
      body: body ? JSON.stringify(body) : undefined,
      signal,
      cache: "no-store",
    });
    if (response.ok) return response;
    if (response.status === 401) {
      // Another request may have got a key meanwhile.
      if (sessionStorage.getItem(KEY) !== used || (await askForKey())) continue;
    }
    throw await errorOf(response);
  }
}

async function errorOf(response) {
  let message = `${response.status} ${response.statusText}`;
  try {
    message = (await response.json()).error.message;
  } catch {
    // not JSON: the status says what there is
  }
  const wait = response.headers.get("Retry-After");
  if (response.status === 429 && wait) message += ` (try again in ${wait} s)`;
  return new ApiError(response.status, message);
}

/** The data of a stream's events, parsed. Raises ApiError. */
export async function* events(path, options) {
  const response = await ask(path, options);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      rest += value;
      const parts = rest.split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        for (const line of part.split("\n")) {
          if (!line.startsWith("data:")) continue;
          const data = line.slice(5).trim();
          if (data !== "[DONE]") yield JSON.parse(data);
        }
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
