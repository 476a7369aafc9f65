// Opens files as Netron does, and prints what a reader would find in them, as JSON.
//
// node netron_loader.mjs NETRON FILE [ATTACHMENT], NETRON being the folder of the JavaScript that the package carries.

import * as fs from 'node:fs/promises';
import * as path from 'node:path';
import { pathToFileURL } from 'node:url';

const [netron, file, attachment] = process.argv.slice(2);
const load = (name) => import(pathToFileURL(path.join(netron, name)));
const base = await load('base.js');
const { ModelFactoryService } = await load('view.js');

class Context {

    constructor(identifier, data) {
        this.identifier = identifier;
        this.stream = new base.BinaryStream(data);
        this.entries = new Map();
    }

    async require(id) {
        return load(`${id}.js`);
    }

    async asset(name) {
        return fs.readFile(path.join(netron, name), 'utf-8');
    }

    async fetch(name) {
        throw new Error(`${name} is not beside it`);
    }

    error(error) {
        throw error;
    }
}

const open = async (name) => new Context(path.basename(name), new Uint8Array(await fs.readFile(name)));
const context = await open(file);
const model = await new ModelFactoryService(context).open(context);
const attached = attachment ? await model.attachment.open(await open(attachment)) : null;

const pairs = (list) => (list || []).map((argument) => [argument.name, String(argument.value)]);
const values = new Map();
const names = (list) => (list || []).flatMap((argument) => argument.value.map((value) => {
    values.set(value.name, value);
    return value.name;
}));
const [graph] = model.modules;
const nodes = graph.nodes.map((node) => ({
    name: node.name,
    type: node.type.name,
    inputs: names(node.inputs),
    outputs: names(node.outputs),
    attributes: pairs(node.attributes),
    metadata: pairs(model.attachment.metadata.node(node)),
    metrics: pairs(model.attachment.metrics.node(node))
}));
const found = {
    format: model.format,
    attached,
    metadata: pairs(model.attachment.metadata.model(model)),
    nodes,
    inputs: names(graph.inputs),
    outputs: names(graph.outputs),
    values: Array.from(values, ([name, value]) => ({
        name,
        type: value.type ? value.type.toString() : null,
        description: value.description || '',
        constant: Boolean(value.initializer),
        metadata: pairs(model.attachment.metadata.value(value)),
        metrics: pairs(model.attachment.metrics.value(value))
    }))
};
process.stdout.write(JSON.stringify(found));
