{{/* Names and parts that several manifests share. */}}
{{- define "holdfast.labels" -}}
app.kubernetes.io/name: holdfast
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- end }}

{{- define "holdfast.image" -}}
{{ .Values.image.name }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* Of a pod: no root, no way to become it. */}}
{{- define "holdfast.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "holdfast.security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* The kubelet asks over TLS, and takes any certificate. */}}
{{- define "holdfast.probes" -}}
startupProbe:
  httpGet: {path: /healthz, port: {{ . }}, scheme: HTTPS}
  periodSeconds: 2
  # An integrity check after a bad end takes long on a large home.
  failureThreshold: 300
livenessProbe:
  httpGet: {path: /healthz, port: {{ . }}, scheme: HTTPS}
  periodSeconds: 15
  timeoutSeconds: 10
  failureThreshold: 4
readinessProbe:
  httpGet: {path: /readyz, port: {{ . }}, scheme: HTTPS}
  periodSeconds: 10
  timeoutSeconds: 5
{{- end }}

{{/* Whether the pods of one part stand on machines of their own. */}}
{{- define "holdfast.apart" -}}
podAntiAffinity:
{{- if eq .apart "required" }}
  requiredDuringSchedulingIgnoredDuringExecution:
    - topologyKey: kubernetes.io/hostname
      labelSelector:
        matchLabels:
          {{- include "holdfast.labels" . | nindent 10 }}
{{- else }}
  preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      podAffinityTerm:
        topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels:
            {{- include "holdfast.labels" . | nindent 12 }}
{{- end }}
{{- end }}

{{- define "holdfast.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- end }}

{{/* Of driver and executors: Spark writes beside what it reads, so their root is not read-only. */}}
{{- define "holdfast.sparkSecurity" -}}
runAsGroup: 10001
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end }}
