"""Prints the documents of a Helm chart, as JSON. Arguments: the chart, and its values as JSON."""

import json
import sys

import helm_python as helm
import yaml

chart, values = sys.argv[1:]
with helm.Chart.load(chart) as loaded:
    files = loaded.render(json.loads(values), name="edge", namespace="prod")
texts = [text for name, text in sorted(files.items()) if name.endswith(".yaml")]
print(json.dumps([document for text in texts for document in yaml.safe_load_all(text) if document]))
