"use strict";
const byId = (name) => document.getElementById(name);
const read = (name) => JSON.parse(byId(name).textContent);
document.documentElement.classList.add("js");
