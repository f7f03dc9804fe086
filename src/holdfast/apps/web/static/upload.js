// Sends the file of a form as it is, and shows why if it is refused.
"use strict";

(() => {
  const said = (form, text) => { form.querySelector("output").textContent = text; };

  document.addEventListener("change", (event) => {
    const chosen = event.target.closest?.("form[data-upload] input[type=file]");
    if (!chosen?.files.length) return;
    const path = chosen.form.elements.path;
    if (!path.value) path.value = chosen.files[0].name;
  });
  document.addEventListener("submit", async (event) => {
    const form = event.target;
    if (!form.matches?.("form[data-upload]")) return;
    event.preventDefault();
    const [file] = form.elements.content.files;
    if (!file) return;
    const fields = new FormData(form);
    const token = fields.get("form_token"), at = fields.get("at");
    for (const name of ["content", "form_token", "at"]) fields.delete(name);
    const button = form.querySelector("button");
    button.disabled = true;
    said(form, `Sending ${file.name} …`);
    try {
      const answer = await fetch(`${form.action}?${new URLSearchParams(fields)}`, {
        method: "POST", body: file,
        headers: { "Content-Type": "application/octet-stream", "X-Form-Token": token, Accept: "application/json" },
      });
      if (answer.ok) { location.assign(at); return; }
      const { error } = await answer.json();
      said(form, error.hint ? `${error.message}: ${error.hint}` : error.message);
    } catch {
      said(form, "It was not sent: this node does not answer.");
    }
    button.disabled = false;
  });
})();
