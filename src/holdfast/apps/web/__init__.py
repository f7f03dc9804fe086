"""The console: a node or a broker in a browser, served by its own daemon under `/`.

A page is one declaration (`page`): a title, a path, a template, what it asks and what of it is
live. What it shows it asks of the same calls that programs make, with the rights of whoever has
logged in (`view`); what it changes it asks for by an action, which names the command that does the
same (`acting`; the content of a file by `uploading`, a vector of a text from `embedding`). So the
console has no rules about data of its own, and a page is added without touching the frame: a module
in `pages/` and a template.

`part` mounts the console in a daemon or a broker. `site` finds the page of a request and answers;
`login/` says who is there, `live/` sends parts of pages anew when something has changed, `render`
makes HTML with everything escaped, `answers` puts the headers on it that let a browser run nothing
but what is in `static/`. What others have written stands there with its licence.
"""
