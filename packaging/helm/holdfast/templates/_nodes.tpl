{{/* A set of nodes: .root is the chart's own scope, .part is "nodes" or "voters", .set are their values. */}}
{{- define "holdfast.nodes" -}}
{{- $name := printf "%s-%s" .root.Release.Name .part }}
{{- $labels := dict "root" .root "part" .part "apart" .set.apart }}
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ $name }}
  labels:
    {{- include "holdfast.labels" $labels | nindent 4 }}
data:
  holdfast.toml: |
    listen = "0.0.0.0:7411"
    # A volume that moves to another machine is the same home there, and no copy of it.
    copied_home = "allow"
    {{- with .set.settings }}
    {{- . | nindent 4 }}
    {{- end }}
---
apiVersion: v1
kind: Service
metadata:
  name: {{ $name }}
  labels:
    {{- include "holdfast.labels" $labels | nindent 4 }}
spec:
  clusterIP: None
  # Peers find each other before they are ready: a group that starts has nobody who is.
  publishNotReadyAddresses: true
  selector:
    {{- include "holdfast.labels" $labels | nindent 4 }}
  ports:
    - {name: node, port: 7411, targetPort: node, appProtocol: https}
    - {name: bus, port: 7412, targetPort: bus, appProtocol: tcp}
---
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: {{ $name }}
  labels:
    {{- include "holdfast.labels" $labels | nindent 4 }}
spec:
  serviceName: {{ $name }}
  replicas: {{ .set.replicas }}
  podManagementPolicy: Parallel
  # One after the other, each when the one before is ready.
  updateStrategy: {type: RollingUpdate}
  # A home is never thrown away with its pod.
  persistentVolumeClaimRetentionPolicy: {whenDeleted: Retain, whenScaled: Retain}
  selector:
    matchLabels:
      {{- include "holdfast.labels" $labels | nindent 6 }}
  template:
    metadata:
      labels:
        {{- include "holdfast.labels" $labels | nindent 8 }}
    spec:
      automountServiceAccountToken: false
      enableServiceLinks: false
      terminationGracePeriodSeconds: 30
      {{- include "holdfast.pullSecrets" .root | nindent 6 }}
      securityContext:
        {{- include "holdfast.podSecurity" .root | nindent 8 }}
      {{- if ne .set.apart "no" }}
      affinity:
        {{- include "holdfast.apart" $labels | nindent 8 }}
      {{- end }}
      initContainers:
        - name: home
          image: {{ include "holdfast.image" .root }}
          imagePullPolicy: {{ .root.Values.image.pullPolicy }}
          command: [sh, -euc]
          args:
            - test -e "$HOLDFAST_HOME/data.db" || holdfast init --peer "$POD" --mesh "$MESH"
          env:
            - name: POD
              valueFrom: {fieldRef: {fieldPath: metadata.name}}
            - {name: MESH, value: {{ .set.mesh | quote }}}
          securityContext:
            {{- include "holdfast.security" .root | nindent 12 }}
          volumeMounts:
            - {name: data, mountPath: /data}
            - {name: tmp, mountPath: /tmp}
      containers:
        - name: node
          image: {{ include "holdfast.image" .root }}
          imagePullPolicy: {{ .root.Values.image.pullPolicy }}
          args: [up, --bus-listen=0.0.0.0:7412, --bus-discovery=off]
          env:
            - {name: HOLDFAST_CONFIG, value: /etc/holdfast/holdfast.toml}
          ports:
            - {name: node, containerPort: 7411}
            - {name: bus, containerPort: 7412}
          {{- include "holdfast.probes" "node" | nindent 10 }}
          resources:
            {{- toYaml .set.resources | nindent 12 }}
          securityContext:
            {{- include "holdfast.security" .root | nindent 12 }}
          volumeMounts:
            - {name: data, mountPath: /data}
            - {name: tmp, mountPath: /tmp}
            - {name: settings, mountPath: /etc/holdfast, readOnly: true}
      volumes:
        - {name: tmp, emptyDir: {medium: Memory, sizeLimit: 256Mi}}
        - name: settings
          configMap: {name: {{ $name }}}
  volumeClaimTemplates:
    - metadata:
        name: data
      spec:
        accessModes: [ReadWriteOnce]
        {{- with .set.storage.className }}
        storageClassName: {{ . | quote }}
        {{- end }}
        resources:
          requests:
            storage: {{ .set.storage.size | quote }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ $name }}
  labels:
    {{- include "holdfast.labels" $labels | nindent 4 }}
spec:
  # Of three voters two must stay: on purpose, one is taken away at a time.
  maxUnavailable: 1
  selector:
    matchLabels:
      {{- include "holdfast.labels" $labels | nindent 6 }}
{{- end }}
