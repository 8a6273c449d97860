"""Kubernetes: an Indexed Job with headless Service, NetworkPolicy, a claim for the run folder, and configuration."""

from __future__ import annotations

from tfmp.deploy.deployment import CONFIG, PORT, RUNS, USER_ID, Deployment, heading, quoted
from tfmp.text import count

FILE_NAME = "kubernetes.yaml"

_CONFIG_KEY = "config.yaml"


def kubernetes(deployment: Deployment, file: str = FILE_NAME) -> str:
    """Return the file's text.

    Args:
        deployment: What to deploy.
        file: The path the heading names.
    """
    one = deployment
    name = one.label
    top = heading(
        [
            f"{count(one.workers, 'worker')}, a pod each; only they reach each other.",
            "",
            f"  kubectl apply -f {file}",
            f"  kubectl logs -f -l app={name} --prefix",
            "",
            f"First push the image {one.image} to where the cluster finds it (--image names it). The claim asks for a",
            "volume that all pods write to (ReadWriteMany); the NetworkPolicy needs a network that enforces it.",
            "Pods that fail are replaced, and the group goes on from the last checkpoint. `delete` in place of `apply`",
            "removes all, with the run folder.",
            *(f"{file.key} must lie at {file.path} in every pod: in the image or on a volume." for file in one.data),
            *one.code_lines,
            f"Made by: {one.made_by}",
        ]
    )
    parts = [_service(name), _network_policy(name), _claim(name), _job(one)]
    if one.config_text is not None:
        parts.insert(0, _config_map(name, one.config_text))
    return "\n".join([*top, *(line for part in parts for line in ("---", *part))]) + "\n"


def _config_map(name: str, text: str) -> list[str]:
    lines = text.rstrip("\n").split("\n")
    plain = not text.startswith((" ", "\n")) and all(line.isprintable() for line in lines)
    block = [f"  {_CONFIG_KEY}: |", *(f"    {line}".rstrip() for line in lines)]
    return [*_head("v1", "ConfigMap", name), "data:", *(block if plain else [f"  {_CONFIG_KEY}: {quoted(text)}"])]


def _service(name: str) -> list[str]:
    return [
        *_head("v1", "Service", name),
        "spec:",
        "  clusterIP: None  # pods find each other by name",
        "  publishNotReadyAddresses: true  # before they are ready",
        f"  selector: {{app: {name}}}",
        "  ports:",
        f"    - {{name: tensorflow, port: {PORT}}}",
    ]


def _network_policy(name: str) -> list[str]:
    return [
        *_head("networking.k8s.io/v1", "NetworkPolicy", name),
        "spec:",
        f"  podSelector: {{matchLabels: {{app: {name}}}}}",
        "  policyTypes: [Ingress, Egress]",
        "  ingress:",
        f"    - from: [{{podSelector: {{matchLabels: {{app: {name}}}}}}}]",
        f"      ports: [{{protocol: TCP, port: {PORT}}}]",
        "  egress:",
        f"    - to: [{{podSelector: {{matchLabels: {{app: {name}}}}}}}]",
        f"      ports: [{{protocol: TCP, port: {PORT}}}]",
        "    - ports: [{protocol: UDP, port: 53}, {protocol: TCP, port: 53}]  # names",
    ]


def _claim(name: str) -> list[str]:
    return [
        *_head("v1", "PersistentVolumeClaim", name),
        "spec:",
        "  accessModes: [ReadWriteMany]",
        "  resources: {requests: {storage: 10Gi}}",
    ]


def _job(one: Deployment) -> list[str]:
    name = one.label
    mounted = one.config_text is not None
    config = [CONFIG] if mounted else []
    ways = ["--workers", str(one.workers), "--cluster", "kubernetes", "--run-dir", f"{RUNS}/{one.folder_name}"]
    words = ["worker", *config, *one.set_words, *ways, "--resume"]
    config_mount = [f"            - {{name: config, mountPath: {CONFIG}, subPath: {_CONFIG_KEY}, readOnly: true}}"]
    config_volume = [f"        - {{name: config, configMap: {{name: {name}}}}}"]
    return [
        *_head("batch/v1", "Job", name),
        "spec:",
        "  completionMode: Indexed",
        f"  completions: {one.workers}",
        f"  parallelism: {one.workers}",
        f"  backoffLimit: {one.workers * one.max_restarts}  # {one.max_restarts} for each worker: all fail together",
        "  podFailurePolicy:",
        "    rules:",
        "      - action: FailJob  # wrong usage or configuration: again would end the same way",
        "        onExitCodes: {operator: In, values: [2]}",
        "      - action: Ignore  # a node that is drained",
        '        onPodConditions: [{type: DisruptionTarget, status: "True"}]',
        "  template:",
        "    metadata:",
        f"      labels: {{app: {name}}}",
        "    spec:",
        f"      subdomain: {name}",
        "      restartPolicy: Never",
        f"      terminationGracePeriodSeconds: {one.stop_s}",
        "      automountServiceAccountToken: false",
        "      enableServiceLinks: false",
        "      securityContext:",
        "        runAsNonRoot: true",
        f"        runAsUser: {USER_ID}",
        f"        runAsGroup: {USER_ID}",
        f"        fsGroup: {USER_ID}",
        "        seccompProfile: {type: RuntimeDefault}",
        "      containers:",
        "        - name: worker",
        f"          image: {quoted(one.image)}",
        "          args:",
        *(f"            - {quoted(_literal(word))}" for word in words),
        "          ports:",
        f"            - {{name: tensorflow, containerPort: {PORT}}}",
        "          resources:",
        f'            requests: {{cpu: "{one.cpus}", memory: {one.memory_mib}Mi}}',
        f'            limits: {{cpu: "{one.cpus}", memory: {one.memory_mib}Mi}}',
        "          securityContext:",
        "            allowPrivilegeEscalation: false",
        "            readOnlyRootFilesystem: true",
        "            capabilities: {drop: [ALL]}",
        "          volumeMounts:",
        *(config_mount if mounted else []),
        f"            - {{name: runs, mountPath: {RUNS}}}",
        "            - {name: tmp, mountPath: /tmp}",
        "      volumes:",
        *(config_volume if mounted else []),
        f"        - {{name: runs, persistentVolumeClaim: {{claimName: {name}}}}}",
        "        - {name: tmp, emptyDir: {}}",
    ]


def _head(api: str, kind: str, name: str) -> list[str]:
    return [f"apiVersion: {api}", f"kind: {kind}", "metadata:", f"  name: {name}", f"  labels: {{app: {name}}}"]


def _literal(text: str) -> str:
    """A text in which Kubernetes replaces nothing: ``$(NAME)`` would be a variable."""
    return text.replace("$(", "$$(")
