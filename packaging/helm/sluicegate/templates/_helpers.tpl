{{- define "sluicegate.name" -}}
{{- printf "%s" .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "sluicegate.selector" -}}
app.kubernetes.io/name: sluicegate
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "sluicegate.labels" -}}
{{ include "sluicegate.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "sluicegate.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- define "sluicegate.secret" -}}
{{- .Values.admin.existingSecret | default (printf "%s-admin" (include "sluicegate.name" .)) -}}
{{- end -}}

{{- define "sluicegate.store" -}}
{{- if .Values.redis.enabled -}}
redis://{{ include "sluicegate.name" . }}-redis.{{ .Release.Namespace }}.svc:6379
{{- else -}}
{{ .Values.redis.url }}
{{- end -}}
{{- end -}}
